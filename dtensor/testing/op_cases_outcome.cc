// Places operands, applies operators, and reads what came out.
#include <memory>
#include <type_traits>
#include <utility>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/testing/op_cases.h"

namespace dtensor {
namespace {

// Term `term` of `terms` whose combination is `value`: random but for one.
// Of `terms`, whose sum is divided by `averaged`.
double Term(double value, ReduceOp op, int64_t element, int term, int terms, int averaged,
            uint64_t seed) {
  const auto random = [&](int k) { return SmallInteger(TestHash(seed, element, k)); };
  const int owner = static_cast<int>(TestHash(seed, element, 99) % terms);
  switch (op) {
    case ReduceOp::kMax:
      return term == owner ? value : value - 3 - random(term);
    case ReduceOp::kMin:
      return term == owner ? value : value + 3 + random(term);
    case ReduceOp::kProduct:
      return term == owner ? value : 1;
    default:
      break;
  }
  if (term > 0) return random(term);
  double rest = averaged * value;
  for (int k = 1; k < terms; ++k) rest -= random(k);
  return rest;
}

template <typename T>
T To(double value) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

TensorOr DistributeAs(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      DType dtype, absl::Span<const double> values) {
  return VisitDType(dtype, [&](auto zero) -> TensorOr {
    using T = decltype(zero);
    const auto typed = std::make_unique<T[]>(values.size());  // a vector of bools has no elements
    for (size_t e = 0; e < values.size(); ++e) typed[e] = To<T>(values[e]);
    return Distribute<T>(context, layout, shape, absl::MakeConstSpan(typed.get(), values.size()));
  });
}

// The terms of one rank of the layout's mesh.
std::vector<double> Terms(int rank, const Layout& layout, absl::Span<const double> values,
                          uint64_t seed) {
  const auto coordinate = layout.mesh().Coordinate(rank);
  int term = 0, terms = 1, averaged = 1;
  for (int axis : layout.partial_axes()) {
    term = term * layout.mesh().axis_size(axis) + coordinate[axis];
    terms *= layout.mesh().axis_size(axis);
  }
  for (int axis : layout.averaged_axes()) averaged *= layout.mesh().axis_size(axis);
  std::vector<double> mine;
  for (size_t e = 0; e < values.size(); ++e) {
    mine.push_back(Term(values[e], layout.term_op(), e, term, terms, averaged, seed));
  }
  return mine;
}

}  // namespace

TensorOr Place(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
               absl::Span<const double> values, uint64_t seed) {
  if (!layout.is_partial()) return DistributeAs(context, layout, shape, dtype, values);
  std::vector<double> mine(values.begin(), values.end());
  if (layout.mesh().Contains(context.rank())) mine = Terms(context.rank(), layout, values, seed);
  DT_ASSIGN_OR_RETURN(const Layout whole, layout.WithPartial({}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor placed,
                      DistributeAs(context, whole, shape, dtype, mine));
  return FromLocal(context, layout, shape, placed.local());
}

absl::StatusOr<std::vector<double>> GlobalValues(const DistributedTensor& tensor) {
  if (!tensor.spec().on_mesh) return std::vector<double>();
  return VisitDType(tensor.dtype(), [&](auto zero) -> absl::StatusOr<std::vector<double>> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor numbers, Cast(tensor, DType::kI32));
      return GlobalValues(numbers);
    } else {
      DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToGlobal<T>(tensor));
      std::vector<double> out;
      for (T value : values) {
        if constexpr (sizeof(T) == 2)
          out.push_back(static_cast<float>(value));
        else
          out.push_back(static_cast<double>(value));
      }
      return out;
    }
  });
}

absl::StatusOr<std::vector<DistributedTensor>> MakeOperands(Context& context, const OpCase& c,
                                                            DType dtype,
                                                            absl::Span<const Layout> layouts,
                                                            uint64_t seed, bool wanted) {
  std::vector<DistributedTensor> operands;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    DT_ASSIGN_OR_RETURN(DistributedTensor operand,
                        Place(context, layouts[i], c.operands[i].shape, c.operands[i].type(dtype),
                              OperandValues(c, static_cast<int>(i), seed), seed + i));
    if (wanted && c.operands[i].is_float()) DT_RETURN_IF_ERROR(operand.set_requires_grad(true));
    operands.push_back(std::move(operand));
  }
  return operands;
}

namespace {

// Replicated; with kPartial, Partial on every axis on which `y` is replicated.
absl::StatusOr<Layout> WeightsLayout(const DistributedTensor& y, Gradients gradients) {
  const Layout whole = Layout::Replicated(y.mesh(), y.ndim());
  if (gradients != Gradients::kPartial) return whole;
  AxisList axes;
  for (int axis : y.layout().replicated_axes()) {
    if (y.mesh().axis_size(axis) > 1) axes.push_back(axis);
  }
  return whole.WithPartial(axes);
}

// The sum over used results of values times weights.
TensorOr Loss(Context& context, const OpCase& c, absl::Span<const DistributedTensor> results,
              uint64_t seed, Gradients gradients) {
  TensorOr loss = DistributedTensor();
  for (size_t r = 0; r < results.size(); ++r) {
    if (!(c.used_results >> r & 1)) continue;
    const DistributedTensor& y = results[r];
    DT_ASSIGN_OR_RETURN(const Layout layout, WeightsLayout(y, gradients));
    const auto values = LossWeights(c, static_cast<int>(r), NumElements(y.shape()), seed);
    DT_ASSIGN_OR_RETURN(const DistributedTensor weights,
                        Place(context, layout, y.shape(), y.dtype(), values, seed + r));
    std::vector<int> dims;
    for (int d = 0; d < y.ndim(); ++d) dims.push_back(d);
    const TensorOr part = Sum(Mul(y, weights), dims);
    loss = loss->defined() ? Add(loss, part) : part;
    DT_RETURN_IF_ERROR(loss.status());
  }
  return loss;
}

}  // namespace

absl::StatusOr<OpOutcome> Evaluate(Context& context, const OpCase& c,
                                   absl::Span<const DistributedTensor> operands, uint64_t seed,
                                   Gradients gradients, bool in_two_parts) {
  const std::vector<TensorOr> holders(operands.begin(), operands.end());
  std::vector<const TensorOr*> pointers;
  for (const TensorOr& holder : holders) pointers.push_back(&holder);
  DT_ASSIGN_OR_RETURN(const auto results, DispatchAll(*c.op, pointers, c.attrs, c.values));
  OpOutcome out;
  for (const DistributedTensor& result : results) {
    DT_ASSIGN_OR_RETURN(std::vector<double> values, GlobalValues(result));
    out.results.push_back(std::move(values));
    out.result_layouts.push_back(result.layout());
  }
  const bool differentiates = c.op->differentiable() && c.used_results != 0;
  if (gradients == Gradients::kNone || !differentiates) return out;
  const TensorOr loss = Loss(context, c, results, seed, gradients);
  if (in_two_parts) {
    DT_ASSIGN_OR_RETURN(DeferredGradients deferred, BackwardForInputs(loss));
    DT_RETURN_IF_ERROR(deferred.Finish());
  } else {
    DT_RETURN_IF_ERROR(Backward(loss));
  }
  for (const DistributedTensor& operand : operands) {
    out.gradients.emplace_back();
    out.gradient_layouts.emplace_back();
    const DistributedTensor gradient = operand.grad();
    if (!gradient.defined()) continue;
    DT_ASSIGN_OR_RETURN(out.gradients.back(), GlobalValues(gradient));
    out.gradient_layouts.back() = gradient.layout();
  }
  return out;
}

absl::StatusOr<OpOutcome> EvaluateDense(const OpCase& c, DType dtype, uint64_t seed) {
  OpOutcome out;
  DT_RETURN_IF_ERROR(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create({{"one", 1}}));
    std::vector<Layout> layouts;
    for (const auto& operand : c.operands) {
      layouts.push_back(Layout::Replicated(mesh, static_cast<int>(operand.shape.size())));
    }
    DT_ASSIGN_OR_RETURN(const auto operands, MakeOperands(context, c, dtype, layouts, seed, true));
    DT_ASSIGN_OR_RETURN(out, Evaluate(context, c, operands, seed, Gradients::kWhole));
    return absl::OkStatus();
  }));
  return out;
}

}  // namespace dtensor
