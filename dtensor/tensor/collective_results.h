// Results of the collectives in a recomputed function, kept for when it runs again
// (RecomputeOptions::keep_collectives).
#ifndef DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
#define DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/recompute.h"

namespace dtensor {

// Identifies one call that communicates: what it moves, and to which layout. Equal calls have equal
// results.
struct CollectiveCall {
  uint64_t lineage;
  const Spec* spec;
};

// The kept results of one function, in the order of its calls.
class CollectiveResults {
 public:
  void Keep(const CollectiveCall& call, absl::Span<const Tensor> results);
  // The results of the first equal call that was not taken since Rewind(); empty if there is none.
  absl::Span<const Tensor> Take(const CollectiveCall& call);
  void Rewind();

 private:
  struct Entry {
    uint64_t lineage;
    SpecPtr spec;
    std::vector<Tensor> results;  // borrowed: writes to the originals do not change them
    bool taken = false;
  };
  std::vector<Entry> entries_;
  size_t first_ = 0;  // all entries before it are taken
};

// Lives while a function of Recompute() runs; recording is on meanwhile.
class RecomputedRun {
 public:
  // `results` may be null: then none are kept. `again`: if this is not the function's first run, so
  // that results are taken instead of kept, a number that identifies the function's call on all
  // ranks; null: it is the first.
  RecomputedRun(Context& context, CollectiveResults* results, const uint64_t* again);
  // Restores whether the Context records, and after a run `again` also its random state.
  ~RecomputedRun();
  RecomputedRun(const RecomputedRun&) = delete;
  RecomputedRun& operator=(const RecomputedRun&) = delete;

 private:
  friend bool TakeResults(Context&, const CollectiveCall&, absl::Span<Tensor>);
  friend void KeepResults(Context&, const CollectiveCall&, absl::Span<const Tensor>);
  friend bool KeepsResults(const Context&);
  friend bool UsesKeptResults(const Context&);
  friend bool IsRecomputing(const Context&);
  friend std::optional<uint64_t> NumberMadeAgain(const Context&, uint64_t);
  Context& context_;
  RecomputedRun* const outer_;  // the run inside which this one runs
  CollectiveResults* const results_;
  const bool again_, recording_;
  const RandomState random_;
  const uint64_t call_;               // if it runs again
  HashMap<uint64_t, uint64_t> made_;  // number of tensors made since it does, by mesh
};

// If a function that runs again has kept results of an equal call, sets `out` to them and returns
// true. The same on all ranks.
bool TakeResults(Context& context, const CollectiveCall& call, absl::Span<Tensor> out);
// Keeps the results for every function that is in its first run and keeps results.
void KeepResults(Context& context, const CollectiveCall& call, absl::Span<const Tensor> results);
// Whether any running function, in its first run or again, keeps results.
bool KeepsResults(const Context& context);
// Whether any function that runs again has kept results.
bool UsesKeptResults(const Context& context);
// Called for a tensor that is made while a function runs again: what identifies it among those of
// its mesh, in place of their count. Ranks run functions again at different places among the calls
// of their program, if they are stages of a pipeline, so the count would differ. Else nullopt.
std::optional<uint64_t> NumberMadeAgain(const Context& context, uint64_t mesh_digest);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
