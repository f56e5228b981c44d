// KvCache: the keys and values of the tokens that a model has already seen, so that one more token
// costs only that token's work. Transformer and Gpt2 support it.
//
//   DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(model, {.batch = 2, .capacity = 512}));
//   DT_ASSIGN_OR_RETURN(logits, cache->Append(prompts, {5, 3}));  // prefill: ids [2, 5]
//   DT_ASSIGN_OR_RETURN(logits, cache->Append(next));             // decode: ids [2, 1]
//
// Each row of a batch has a length of its own: row r's next token is at position lengths()[r],
// independent of the other rows. Prompts of different lengths are padded on the right, and `counts`
// says how many ids of each row are real; a finished row has a count of 0. So a row gets the logits
// that it gets alone, bit for bit on the same mesh, provided that matrix products give each row of
// a batch the same bits.
//
// Memory: each attention has a tensor of keys and one of values, [batch, capacity, kv_heads,
// head_dim], created by the first Append. (Latent attention has one of both, whose one head is the
// latent vector: latent_attention.h.) They are laid out as the model's keys are (tensor parallelism
// shards them by heads), except that the sequence is not sharded, or sharded over `sequence_axis`;
// then each rank attends to its part, and the results are merged by log-sum-exp. They are allocated
// once and never move: a step writes its tokens in place and leaves no new allocation behind. Their
// specs do not depend on the number of tokens. So a decoding step needs no new dispatch decision,
// and the Context's caches do not grow. A window of attention (Mistral's) limits what is read, not
// what is kept.
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
  KvCache* cache = nullptr;  // null: no cache is in use
  int attention = -1;        // -1: the module has none
  int64_t positions = 0;     // set by the module: how many positions it has learned. 0: no limit

  // Of a module with an attention: `rope` with the positions of the cache's next tokens, and
  // Attention of q, k and v or, with a cache, KvCache::Attend.
  RopeOptions Positioned(RopeOptions rope) const;
  // `sinks`: of AttentionWithSinks, or none.
  TensorOr Attend(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                  const AttentionOptions& options,
                  const TensorOr& sinks = DistributedTensor()) const;
};

struct KvCacheOptions {
  int64_t batch = 1;
  int64_t capacity = 0;  // tokens of each row
  // The mesh axis that shards the sequence, in blocks of 64 dealt out in turn. Empty: none.
  std::string sequence_axis = {};
};

class KvCache {
 public:
  // `model` must outlive the cache. It is switched to evaluation (SetTraining(false)). Several
  // caches may belong to one model, or to models that share modules. Allocates nothing yet. Errors:
  // kInvalidArgument, naming the module, for sizes below 1 and for a model with an attention that
  // does not support a cache, an attention whose queries see later keys, or a module that has
  // learned fewer positions than the capacity.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Module& model,
                                                         const KvCacheOptions& options);

  // Runs the model on the next tokens of each row, ids [batch, s]. The first counts[r] ids of row r
  // are real; if `counts` is empty, all are. Returns the logits after the last real id, [batch, 1,
  // vocab], which are the model's first result; for a row without real ids they are meaningless.
  // Other results, such as router_sums, are dropped. Nothing is recorded for Backward. A module may
  // append to another cache meanwhile. Collective. Errors: before anything changes,
  // kInvalidArgument for ids of another shape, counts that do not fit, a row that would exceed the
  // capacity, and while there are KeyLengths, and kFailedPrecondition within an Append of this
  // cache; what the model refuses; failures. After an error its tokens are as they were, and what
  // was written of the new ones is 0 again; an attention that ran for the first time keeps its
  // memory.
  TensorOr Append(const DistributedTensor& ids, absl::Span<const int64_t> counts = {});

  absl::Span<const int64_t> lengths() const { return lengths_; }  // tokens of each row
  int64_t capacity() const { return options_.capacity; }
  // Ids at or above this have no row in any embedding of the model (Module::num_ids). 0: the model
  // has no embedding.
  int64_t num_ids() const { return num_ids_; }
  // Forgets the tokens of a row from `length` on, to start anew or to go back. Their keys and
  // values are set to 0, so that nothing of them, such as a NaN, can affect the tokens that take
  // their place. (Earlier tokens of the same Append may already have been affected.) This is a
  // write to keys() and values(). Errors: kInvalidArgument for a row that does not exist, and a
  // length that the row does not have; kFailedPrecondition within an Append of this cache; those of
  // BeforeWrite; failures.
  absl::Status Truncate(int64_t row, int64_t length);
  // The bytes that this rank keeps.
  int64_t local_bytes() const;
  // Keys and values of attention i; undefined before the first Append. Values are also undefined if
  // they are the keys (AttendToOne).
  int num_attentions() const { return static_cast<int>(layers_.size()); }
  const DistributedTensor& keys(int i) const { return layers_[i].k; }
  const DistributedTensor& values(int i) const { return layers_[i].v; }

  // --- For modules, while Append runs.
  // Token i of row r is at position i + first + rows[r]. `rows` is empty if all rows begin at the
  // same position.
  struct Positions {
    int64_t first = 0;
    std::vector<int64_t> rows;
    int64_t end = 0;  // one past the last real position of any row
  };
  const Positions& positions() const { return positions_; }
  // Stores k and v [batch, s, kv_heads, head_dim] of the module's attention. Returns the attention
  // of q to them and to the tokens before, and to `sinks`, if there are any (AttentionWithSinks).
  // The offsets in `options` are set here.
  TensorOr Attend(const KvCacheSlot& slot, const TensorOr& q, const TensorOr& k, const TensorOr& v,
                  AttentionOptions options, const TensorOr& sinks = DistributedTensor());
  // The same where x [batch, s, kv_heads, head_dim] is both keys and values.
  TensorOr AttendToOne(const KvCacheSlot& slot, const TensorOr& q, const TensorOr& x,
                       AttentionOptions options);
  // The last real token of each row: [batch, s, features] -> [batch, 1, features].
  TensorOr LastTokens(const DistributedTensor& x) const;

 private:
  struct Layer {
    DistributedTensor k, v;  // undefined: none so far, or none at all of v
    uint64_t pass = 0;       // the pass that last wrote it
  };
  // A module that takes part, and the number of its attention, or -1.
  struct Part {
    KvCacheSlot* slot = nullptr;
    int attention = -1;
  };
  // Sets tokens [begin, end) of the row to 0.
  absl::Status ForgetTokens(int64_t row, int64_t begin, int64_t end) const;
  static absl::StatusOr<std::vector<Part>> PartsOf(Module& model, int64_t capacity);
  KvCache(Module& model, const KvCacheOptions& options);
  absl::Status CheckIdle() const;
  absl::Status CheckAppend(const DistributedTensor& ids, absl::Span<const int64_t> counts) const;
  void SetPositions(int64_t s, absl::Span<const int64_t> counts);
  TensorOr NewTensor(const DistributedTensor& like) const;
  // Writes x to the tensor, which is made if there is none.
  absl::Status Keep(DistributedTensor& kept, const DistributedTensor& x) const;
  // The slot's attention, which runs for the first time in this pass.
  absl::StatusOr<Layer*> Enter(const KvCacheSlot& slot);
  TensorOr AttendTo(const DistributedTensor& k, const DistributedTensor& v, const TensorOr& q,
                    AttentionOptions options, const TensorOr& sinks = DistributedTensor()) const;

  Module& model_;
  const KvCacheOptions options_;
  int64_t num_ids_ = 0;
  std::vector<Part> parts_;
  std::vector<Layer> layers_;
  std::vector<int64_t> lengths_;
  // State of the running Append.
  bool running_ = false;
  uint64_t pass_ = 0;
  std::vector<int64_t> counts_;
  Positions positions_;
};

// Writes tokens of x [b, s, ...] into `cache` [b, t, ...], in place: for row r, the first counts[r]
// tokens, to positions from starts[r] on. x is redistributed to the cache's layout, with the
// sequence replicated. It is a write like any other: aliases see it, results of redistributions do
// not (BeforeWrite). Collective. Errors: kInvalidArgument for shapes and types that do not fit, for
// tokens that do not fit, and while the Context records, since a write has no gradient; those of
// BeforeWrite; failures.
absl::Status WriteTokens(const DistributedTensor& cache, const TensorOr& x,
                         absl::Span<const int64_t> starts, absl::Span<const int64_t> counts);

}  // namespace dtensor

#endif  // DTENSOR_NN_KV_CACHE_H_
