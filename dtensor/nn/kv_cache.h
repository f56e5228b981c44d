// KvCache: the keys and values of the tokens that a model has seen, so that a token more costs what
// one token costs. What a model does with it: Transformer and Gpt2.
//
//   DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(model, {.batch = 2, .capacity = 512}));
//   DT_ASSIGN_OR_RETURN(logits, cache->Append(prompts, {5, 3}));  // prefill: ids [2, 5]
//   DT_ASSIGN_OR_RETURN(logits, cache->Append(next));             // decode: ids [2, 1]
//
// Rows of a batch have lengths of their own: row r's next token is at position lengths()[r],
// whatever the others have. A prefill of unlike prompts is padded on the right, `counts` saying how
// many ids of each row are real; a row that is done has a count of 0. So a row's logits are those
// that it has alone, bit for bit on the same mesh where matrix products give each row of a batch
// the same bits.
//
// Memory. For each attention a tensor of keys and one of values, [batch, capacity, kv_heads,
// head_dim], made by the first Append: they lie as the model's keys do, which tensor parallelism
// splits by heads, and the sequence whole, or split by `sequence_axis`; then each rank attends to
// its part, and results are merged by log-sum-exp. They are allocated once, and never move; a step
// writes its tokens in place and allocates nothing that stays. Their specs do not depend on how
// many tokens there are, so that no step of decoding is a new decision: the Context's caches stay
// as they are. A window of attention (Mistral's) bounds what is read, not what is kept.
#ifndef DTENSOR_NN_KV_CACHE_H_
#define DTENSOR_NN_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class KvCache;

// Tells a module whether it currently runs with a cache, and which of the model's attentions it is.
// Every module that takes part in decoding has one as a member (Module::kv_cache_slot). `cache` and
// `attention` are set by KvCache::Append and valid while it runs.
struct KvCacheSlot {
  KvCache* cache = nullptr;  // null: none does
  int attention = -1;        // -1: the module has none
  int64_t positions = 0;     // that the module knows, and no more; its own word. 0: any
};

struct KvCacheOptions {
  int64_t batch = 1;
  int64_t capacity = 0;  // tokens of each row
  // The axis of the mesh that splits the sequence, in blocks of 64 dealt in turn. Empty: none.
  std::string sequence_axis = {};
};

class KvCache {
 public:
  // `model` outlives the cache. It is only evaluated from here on (SetTraining(false)). Several
  // caches may belong to one model, or to models that share modules. No memory is taken yet.
  // Errors: kInvalidArgument for sizes below 1, and a module with an attention that keeps no cache,
  // one whose queries see keys behind them, or one that has learned fewer positions than the
  // capacity, naming it.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Module& model,
                                                         const KvCacheOptions& options);

  // Runs the model on the next tokens of each row, ids [batch, s], of which the first counts[r] of
  // row r are real; empty: all. Returns the logits that follow the last real one, [batch, 1,
  // vocab]; of a row without real ids they mean nothing. Nothing is recorded. Collective. Errors:
  // kInvalidArgument, where nothing changes, for ids of another shape, counts that do not fit, and
  // a row that would have more tokens than the capacity; what the model refuses; failures. The
  // cache is then as it was.
  TensorOr Append(const DistributedTensor& ids, absl::Span<const int64_t> counts = {});

  absl::Span<const int64_t> lengths() const { return lengths_; }  // tokens of each row
  int64_t capacity() const { return options_.capacity; }
  // Ids that no embedding of the model has a row for are at this or above (Module::num_ids). 0: it
  // has no embedding.
  int64_t num_ids() const { return num_ids_; }
  // Forgets the tokens of a row from `length` on: to begin anew, or to go back. Their keys and
  // values become 0, so that nothing of them, such as a NaN, is met by what comes in their place
  // (what one Append added with them, in front of them, may have met it): a write to keys() and
  // values(). Errors: kInvalidArgument for a row that is not there, and a length that it has not;
  // those of BeforeWrite; failures.
  absl::Status Truncate(int64_t row, int64_t length);
  // What this rank keeps.
  int64_t local_bytes() const;
  // Keys and values of attention i: undefined before the first Append.
  int num_attentions() const { return static_cast<int>(layers_.size()); }
  const DistributedTensor& keys(int i) const { return layers_[i].k; }
  const DistributedTensor& values(int i) const { return layers_[i].v; }

  // --- For modules, while Append runs.
  // Token i of row r is at position i + first + rows[r]; rows: empty where all begin alike.
  struct Positions {
    int64_t first = 0;
    std::vector<int64_t> rows;
    int64_t end = 0;  // behind the last real one
  };
  const Positions& positions() const { return positions_; }
  // Keeps k and v [batch, s, kv_heads, head_dim] of the module's attention, and returns what q sees
  // of them and of those before. Of the options, offsets are set here.
  TensorOr Attend(const KvCacheSlot& slot, const TensorOr& q, const TensorOr& k, const TensorOr& v,
                  AttentionOptions options);
  // The last real token of each row: [batch, s, features] -> [batch, 1, features].
  TensorOr LastTokens(const DistributedTensor& x) const;

 private:
  struct Layer {
    DistributedTensor k, v;
    uint64_t pass = 0;  // in which it was written last
  };
  // A module that has part in it, and the number of its attention, or -1.
  struct Part {
    KvCacheSlot* slot = nullptr;
    int attention = -1;
  };
  static absl::StatusOr<std::vector<Part>> PartsOf(Module& model, int64_t capacity);
  KvCache(Module& model, const KvCacheOptions& options);
  absl::Status CheckAppend(const DistributedTensor& ids, absl::Span<const int64_t> counts) const;
  void SetPositions(int64_t s, absl::Span<const int64_t> counts);
  TensorOr NewTensor(const DistributedTensor& like) const;

  Module& model_;
  const KvCacheOptions options_;
  int64_t num_ids_ = 0;
  std::vector<Part> parts_;
  std::vector<Layer> layers_;
  std::vector<int64_t> lengths_;
  // Of the Append that runs.
  uint64_t pass_ = 0;
  std::vector<int64_t> counts_;
  Positions positions_;
};

// Writes tokens of x [b, s, ...] into `cache` [b, t, ...], in place: of row r the first counts[r],
// from position starts[r] on. x is brought to where the cache lies, which only its sequence may be
// split otherwise of. A write as any other: aliases see it, results of redistributions do not
// (BeforeWrite). Collective. Errors: kInvalidArgument for shapes and types that do not fit, tokens
// that do not fit, and while the Context records, since a write has no gradient; those of
// BeforeWrite; failures.
absl::Status WriteTokens(const DistributedTensor& cache, const TensorOr& x,
                         absl::Span<const int64_t> starts, absl::Span<const int64_t> counts);

}  // namespace dtensor

#endif  // DTENSOR_NN_KV_CACHE_H_
