// What the executor's results must be, element by element, from regions alone.
#ifndef DTENSOR_TESTING_EXECUTOR_ORACLE_H_
#define DTENSOR_TESTING_EXECUTOR_ORACLE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/regions.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"

namespace dtensor {

// A function, for lambdas with DT_ASSIGN_OR_RETURN: a macro would put all of them on one line.
inline void ExpectOk(const absl::Status& status) { DT_EXPECT_OK(status); }

inline DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

// All global indices of a region, in local order, as row-major numbers.
inline std::vector<int64_t> GlobalNumbers(const Region& region, absl::Span<const int64_t> shape) {
  std::vector<int64_t> numbers = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t number : numbers) {
      for (int64_t i = 0; i < region[d].size(); ++i)
        next.push_back(number * shape[d] + region[d].At(i));
    }
    numbers = std::move(next);
  }
  return numbers;
}

// A whole number below 23 for each element and term; sums, products and averages of up to 8 are
// exact in every type.
inline int64_t TermValue(const Layout& layout, int64_t number, absl::Span<const int> coordinate) {
  int64_t term = 0;
  for (int axis : layout.partial_axes())
    term = term * layout.mesh().axis_size(axis) + coordinate[axis];
  if (!layout.is_partial()) return (5 * number + 1) % 23;
  if (layout.partial_op() == ReduceOp::kProduct) return 1 + (number + term) % 2;
  if (layout.partial_op() == ReduceOp::kAvg) return layout.mesh().size() * ((number + term) % 4);
  return (number + 5 * term) % 23;
}

// The product of the sizes of `axes`.
inline int64_t Terms(const DeviceMesh& mesh, const AxisList& axes) {
  int64_t terms = 1;
  for (int axis : axes) terms *= mesh.axis_size(axis);
  return terms;
}

inline int64_t Combine(ReduceOp op, int64_t a, int64_t b) {
  if (op == ReduceOp::kMax) return std::max(a, b);
  if (op == ReduceOp::kMin) return std::min(a, b);
  return op == ReduceOp::kProduct ? a * b : a + b;
}

// The element of the tensor, or of the term that stays at `coordinate`.
inline int64_t ReducedValue(const Layout& from, const Layout& to, int64_t number,
                            absl::InlinedVector<int, 4> coordinate) {
  // An average over axes that are reduced, or stay and sum, is a quotient; a sum that becomes an
  // average a product.
  AxisList reduced, over, times;
  for (int axis : from.partial_axes()) {
    const bool stays = to.use(axis) == Layout::AxisUse::kPartial;
    const bool was = from.partial_op(axis) == ReduceOp::kAvg;
    const bool is = stays && to.partial_op(axis) == ReduceOp::kAvg;
    if (!stays) reduced.push_back(axis);
    if (was && !is) over.push_back(axis);
    if (is && !was) times.push_back(axis);
  }
  const std::vector<int> group = from.mesh().Group(from.mesh().RankAt(coordinate), reduced);
  int64_t value = TermValue(from, number, from.mesh().Coordinate(group[0]));
  for (size_t i = 1; i < group.size(); ++i) {
    value = Combine(from.partial_op(), value,
                    TermValue(from, number, from.mesh().Coordinate(group[i])));
  }
  return value * Terms(from.mesh(), times) / Terms(from.mesh(), over);
}

// Which elements of a rank's result, row-major, the plan writes; Verify() proves that of the others
// one of the ranks with which it shares a term has them.
inline std::vector<bool> Written(const RedistributionPlan& plan, int rank) {
  const Dims shape = plan.to().LocalShape(plan.shape(), rank);
  std::vector<bool> written(NumElements(shape), false);
  for (int s = 0; s < std::max<int>(1, static_cast<int>(plan.steps().size())); ++s) {
    for (const ReceiveBox& box : plan.Receives(s, rank)) {
      std::vector<int64_t> offsets = {0};
      for (size_t d = 0; d < shape.size(); ++d) {
        std::vector<int64_t> next;
        const MatchedRun& piece = box.dims[d];
        for (int64_t offset : offsets) {
          for (int64_t i = 0; i < piece.size(); ++i) {
            next.push_back(offset * shape[d] + piece.dst + i / piece.length * piece.dst_stride +
                           i % piece.length);
          }
        }
        offsets = next;
      }
      for (int64_t offset : offsets) written[offset] = true;
    }
  }
  return written;
}

template <typename T>
T FromInt(int64_t value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value > 11;  // ascending, as max and min ask for
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<std::conditional_t<std::is_arithmetic_v<T>, T, float>>;
  if (op == ReduceOp::kSum) return FromInt<T>(0);
  if (op == ReduceOp::kProduct) return FromInt<T>(1);
  const bool high = op == ReduceOp::kMin;
  if (Limits::has_infinity) return T(high ? Limits::infinity() : -Limits::infinity());
  return T(high ? Limits::max() : Limits::lowest());
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a == b;
  } else {
    if (a.size() != b.size()) return false;
    return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  }
}

template <typename T>
absl::StatusOr<Tensor> ToDevice(Device& device, const std::vector<T>& values,
                                absl::Span<const int64_t> shape) {
  // vector<bool> has no data().
  auto array = std::make_unique<T[]>(values.size());
  std::copy(values.begin(), values.end(), array.get());
  return FromHost<T>(device, absl::MakeConstSpan(array.get(), values.size()), shape);
}

template <typename T>
absl::StatusOr<Tensor> SourceOf(const RedistributionPlan& plan, int rank, Device& device) {
  const auto coordinate = plan.from().mesh().Coordinate(rank);
  std::vector<T> values;
  for (int64_t number :
       GlobalNumbers(Regions(plan.from(), plan.shape(), coordinate), plan.shape())) {
    values.push_back(FromInt<T>(TermValue(plan.from(), number, coordinate)));
  }
  return ToDevice<T>(device, values, plan.from().LocalShape(plan.shape(), rank));
}

template <typename T>
std::vector<T> Expected(const RedistributionPlan& plan, int rank) {
  const auto coordinate = plan.from().mesh().Coordinate(rank);
  std::vector<T> values;
  const std::vector<bool> written = Written(plan, rank);
  for (int64_t number : GlobalNumbers(Regions(plan.to(), plan.shape(), coordinate), plan.shape())) {
    values.push_back(written[values.size()]
                         ? FromInt<T>(ReducedValue(plan.from(), plan.to(), number, coordinate))
                         : Identity<T>(plan.to().term_op()));
  }
  return values;
}

}  // namespace dtensor

#endif  // DTENSOR_TESTING_EXECUTOR_ORACLE_H_
