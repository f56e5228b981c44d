// Results of the collectives in a recomputed function, kept for when it runs again
// (RecomputeOptions::keep_collectives). Only for recompute.cc, and for dispatch.cc, tensor_impl.cc
// and gather_again.cc, which communicate for operators.
#ifndef DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
#define DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"

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
  // `results` may be null: then none are kept. `again`: this is not the function's first run, so
  // results are taken instead of kept.
  RecomputedRun(Context& context, CollectiveResults* results, bool again);
  // Restores whether the Context records, and after a run `again` also its random state.
  ~RecomputedRun();
  RecomputedRun(const RecomputedRun&) = delete;
  RecomputedRun& operator=(const RecomputedRun&) = delete;

 private:
  friend bool TakeResults(Context&, const CollectiveCall&, absl::Span<Tensor>);
  friend void KeepResults(Context&, const CollectiveCall&, absl::Span<const Tensor>);
  friend bool KeepsResults(const Context&);
  friend bool UsesKeptResults(const Context&);
  Context& context_;
  RecomputedRun* const outer_;  // the run inside which this one runs
  CollectiveResults* const results_;
  const bool again_, recording_;
  const RandomState random_;
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

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
