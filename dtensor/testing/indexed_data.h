// Index-coded tensors, and an oracle for what a redistribution makes of them.
//
// An element's value follows from its global index. The terms of a Partial source are chosen so
// that they combine to that value exactly, in any type, by any op and in any order: a missing, a
// doubled or a foreign term shows, and so does an element in the wrong place.
//
//   sum      v = w0 + (w1 - w0) + (v - w1): differences of a walk that ends at the value
//   avg      v + the same for a walk that ends at 0
//   max      one term is the value, the others are at most that; min alike
//   product  signs whose product is the value's sign; one term has its size
//
// Values are whole numbers, few enough that 64 terms add up exactly in AccumulatorOf(dtype), and
// that the result's type has them all.
//
// Which values there must be follows from the layouts alone. Which of the ranks that share a new
// term holds an element is the plan's choice: CheckKeepers says whether one of them does.
#ifndef DTENSOR_TESTING_INDEXED_DATA_H_
#define DTENSOR_TESTING_INDEXED_DATA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// Which of an element's terms a rank holds.
struct TermPlace {
  int64_t problem = 0;  // coordinates on axes that stay partial: each has an element of its own
  int index = 0, count = 1;  // of the terms that are reduced
};

// The numbers behind the data. `op` combines the terms.
class TermCode {
 public:
  TermCode(DType dtype, ReduceOp op);
  int64_t Value(int64_t number,
                int64_t problem) const;  // of the element with this row-major number
  int64_t Term(int64_t number, const TermPlace& place) const;

 private:
  int64_t Walk(int64_t number, const TermPlace& place, int step, int64_t end) const;
  int64_t Sign(int64_t number, const TermPlace& place, int step, int64_t value) const;
  bool is_product_, is_bool_;
  ReduceOp op_;
  int64_t low_, span_;  // values lie in [low, low + span)
};

// What differs on one rank.
struct Mismatches {
  int64_t count = 0;
  std::string first;  // "element 12 is 3, not 4"
};

class IndexedData {
 public:
  static constexpr int kMaxRanks = 64;

  // Requires: at most kMaxRanks ranks. The plan outlives it.
  explicit IndexedData(const RedistributionPlan& plan);

  // Of the ranks that differ on axes that become partial only, the plan must let one have an
  // element, and the others the identity. Errors: kInternal.
  absl::Status CheckKeepers() const;

  // A tensor with what the source layout gives `rank`; empty where that is outside of its mesh.
  // Errors: of FromHost.
  absl::StatusOr<Tensor> Source(int rank, Device& device) const;
  // Compares with what the target layout gives `rank`, bit by bit; what the host cannot be given is
  // a mismatch. Requires: the rank's local shape and the result's type.
  Mismatches Check(int rank, const Tensor& result) const;

 private:
  template <typename T>
  void FillSource(int rank, const Dims& strides, T* values) const;
  template <typename T>
  T Expected(int64_t number, int64_t problem) const;

  const RedistributionPlan& plan_;
  AxisList reduced_, kept_, created_;  // partial axes: in the source alone, in both, in the target
  ReduceOp op_;                        // of the reduced axes; kAvg if any of them averages
  int terms_ = 1;                      // that are reduced
  double scale_ = 1;                   // what makes averages of sums, and sums of averages
  TermCode code_;
};

// The same for the ranks of one mesh, once the device has done all its work. Errors: kInternal,
// naming the first mismatch; the device's failure.
absl::Status CheckResult(const RedistributionPlan& plan, int rank, const Tensor& result);

}  // namespace dtensor

#endif  // DTENSOR_TESTING_INDEXED_DATA_H_
