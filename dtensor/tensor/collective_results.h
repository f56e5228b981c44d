// What the collectives of a recomputed function gave, kept for when it runs again. For
// recompute.cc, and what communicates for operators: dispatch.cc and tensor_impl.cc.
#ifndef DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
#define DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

// One call that communicates: of what, and to which layout. Calls that are equal give equal values.
struct CollectiveCall {
  uint64_t lineage;
  const Spec* spec;
};

// Of one function, in the order of its calls.
class CollectiveResults {
 public:
  void Keep(const CollectiveCall& call, absl::Span<const Tensor> results);
  // The results of the first such call that was not taken since Rewind(); empty: there is none.
  absl::Span<const Tensor> Take(const CollectiveCall& call);
  void Rewind();

 private:
  struct Entry {
    uint64_t lineage;
    SpecPtr spec;
    std::vector<Tensor> results;  // values, which nobody else writes to
    bool taken = false;
  };
  std::vector<Entry> entries_;
  size_t first_ = 0;  // all before it are taken
};

// A function of Recompute() while it runs, recorded.
class RecomputedRun {
 public:
  // `results` may be null: they are not kept. `again`: it ran before, and they are taken.
  RecomputedRun(Context& context, CollectiveResults* results, bool again);
  // The Context records as it did, and, if the function ran again, draws what it would have drawn.
  ~RecomputedRun();
  RecomputedRun(const RecomputedRun&) = delete;
  RecomputedRun& operator=(const RecomputedRun&) = delete;

 private:
  friend bool TakeResults(Context&, const CollectiveCall&, absl::Span<Tensor>);
  friend void KeepResults(Context&, const CollectiveCall&, absl::Span<const Tensor>);
  friend bool KeepsResults(const Context&);
  friend bool UsesKeptResults(const Context&);
  Context& context_;
  RecomputedRun* const outer_;  // in which this one runs
  CollectiveResults* const results_;
  const bool again_, recording_;
  const RandomState random_;
};

// Sets `out` to the results that a function which runs again has kept of the call. False: there are
// none. The same on all ranks.
bool TakeResults(Context& context, const CollectiveCall& call, absl::Span<Tensor> out);
// For each function that runs for the first time, and keeps results.
void KeepResults(Context& context, const CollectiveCall& call, absl::Span<const Tensor> results);
// Whether KeepResults() keeps, or a function runs again that did.
bool KeepsResults(const Context& context);
// Whether a function runs again that has kept results.
bool UsesKeptResults(const Context& context);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_COLLECTIVE_RESULTS_H_
