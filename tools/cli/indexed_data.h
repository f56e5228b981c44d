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
// Values are whole numbers, few enough that 64 terms add up exactly in AccumulatorOf(dtype).
#ifndef DTENSOR_TOOLS_CLI_INDEXED_DATA_H_
#define DTENSOR_TOOLS_CLI_INDEXED_DATA_H_

#include <cstdint>
#include <string>

#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::cli {

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

  // Writes what the source layout gives `rank`; nothing where that is outside of its mesh.
  // Requires: the rank's local shape and type, on the host.
  void FillSource(int rank, const Tensor& source) const;
  // Compares with what the target layout gives `rank`, bit by bit. Requires: as FillSource.
  Mismatches Check(int rank, const Tensor& result) const;

 private:
  template <typename T>
  T Expected(int64_t number, int64_t problem, absl::Span<const int> coordinate) const;
  bool Keeps(int64_t number, absl::Span<const int> coordinate) const;

  const RedistributionPlan& plan_;
  TermCode code_;
  bool one_mesh_;
  int terms_ = 1;
  AxisList reduced_, kept_, created_;  // partial axes: in the source alone, in both, in the target
};

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_INDEXED_DATA_H_
