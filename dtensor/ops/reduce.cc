// Sum, Mean, SumOfSquares and Bincount.
#include "dtensor/runtime/kernels/reduce.h"

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/reduced_dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// "d0 d1 d2 -> d0 d2".
absl::StatusOr<RuleText> SumRule(absl::Span<const Dims> shapes, AttrsView attrs) {
  const int ndim = static_cast<int>(shapes[0].size());
  std::vector<std::string> kept;
  for (int d = 0; d < ndim; ++d) {
    if (!absl::c_linear_search(attrs.as<ReduceAttrs>().dims, d)) kept.push_back(Letter(d));
  }
  return RuleText{absl::StrCat(Letters(ndim), " -> ", absl::StrJoin(kept, " ")), {}};
}

absl::Status SumForward(const OpCall& call) {
  return kernels::Reduce(call.device(), ReduceOp::kSum, call.operands[0],
                         call.attrs<ReduceAttrs>().dims, call.results[0]);
}

// Every element of x gets the gradient of its sum, dy: a broadcast view.
absl::StatusOr<Tensor> Spread(const GradCall& call, const Tensor& dy) {
  const Dims& shape = call.decision.operands[0]->local_shape;
  Dims kept = shape;
  for (int d : call.attrs<ReduceAttrs>().dims) kept[d] = 1;
  DT_ASSIGN_OR_RETURN(const Tensor reshaped, ReshapeLocal(call.device(), dy, kept));
  return reshaped.BroadcastTo(shape);
}

absl::Status SumBackward(const GradCall& call) {
  DT_ASSIGN_OR_RETURN(call.gradients[0], Spread(call, call.result_gradients[0]));
  return absl::OkStatus();
}

// How many elements, over all ranks, one mean is taken of.
double Count(const Decision& decision) {
  double count = 1;
  for (int d : AttrsView(decision.attrs).as<ReduceAttrs>().dims) {
    count *= static_cast<double>(decision.operands[0]->shape[d]);
  }
  return count;
}

// Each rank divides its own term, because the undivided sum may exceed the range of a 16-bit type.
absl::Status MeanForward(const OpCall& call) {
  return kernels::Mean(call.device(), call.operands[0], call.attrs<ReduceAttrs>().dims,
                       Count(call.decision), call.results[0]);
}

absl::Status MeanBackward(const GradCall& call) {
  const Tensor& dy = call.result_gradients[0];
  DT_ASSIGN_OR_RETURN(const Tensor share, Tensor::Empty(call.device(), dy.dtype(), dy.shape()));
  DT_RETURN_IF_ERROR(kernels::Scale(call.device(), dy, 1 / Count(call.decision), share));
  DT_ASSIGN_OR_RETURN(call.gradients[0], Spread(call, share));
  return absl::OkStatus();
}

absl::StatusOr<RuleText> ScalarRule(absl::Span<const Dims> shapes, AttrsView) {
  return RuleText{absl::StrCat(Letters(static_cast<int>(shapes[0].size())), " -> "), {}};
}

absl::Status SumOfSquaresForward(const OpCall& call) {
  return kernels::SumOfSquares(call.device(), call.operands[0], call.results[0]);
}

// 2 x dy. For 16-bit types it is computed in f32, the type of the sum, because dy may be outside of
// their range.
absl::Status SumOfSquaresBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor& x = call.operands[0];
  const Tensor& dy = call.result_gradients[0];
  const auto like = [&](const Tensor& t, DType dtype) {
    return Tensor::Empty(device, dtype, t.shape());
  };
  DT_ASSIGN_OR_RETURN(const Tensor twice, like(dy, dy.dtype()));
  DT_RETURN_IF_ERROR(kernels::Scale(device, dy, 2, twice));
  const Tensor factor = twice.BroadcastTo(x.shape());
  const Tensor& dx = call.gradients[0];
  if (x.dtype() == dy.dtype()) {
    return kernels::Binary(device, kernels::BinaryOp::kMul, x, factor, dx);
  }
  DT_ASSIGN_OR_RETURN(const Tensor wide, like(x, dy.dtype()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, x, wide));
  DT_RETURN_IF_ERROR(kernels::Binary(device, kernels::BinaryOp::kMul, wide, factor, wide));
  return kernels::Unary(device, kernels::UnaryOp::kCopy, wide, dx);
}

DType SumOfSquaresType(Specs operands, AttrsView, int) { return AccumulatorOf(operands[0]->dtype); }

const OpDef kSumOp = {
    .name = "Sum",
    .describe = SumRule,
    .linearity = RuleLinearity::kJoint,
    .attrs = &kAttrsType<ReduceAttrs>,
    .types = TypeSet::Numbers(),
    .every_device = {SumForward, SumBackward},
    .sets_gradients = true,
};

const OpDef kMeanOp = {
    .name = "Mean",
    .describe = SumRule,
    .linearity = RuleLinearity::kJoint,
    .attrs = &kAttrsType<ReduceAttrs>,
    .types = TypeSet::Floats(),
    .every_device = {MeanForward, MeanBackward},
    .sets_gradients = true,
};

const OpDef kSumOfSquaresOp = {
    .name = "SumOfSquares",
    .describe = ScalarRule,
    .types = TypeSet::Floats(),
    .result_dtype = SumOfSquaresType,
    .every_device = {SumOfSquaresForward, SumOfSquaresBackward},
    .saved_operands = 0b1,
};

absl::StatusOr<RuleText> BincountRule(absl::Span<const Dims>, AttrsView attrs) {
  return RuleText{"... -> n!", {{"n", attrs.as<BincountAttrs>().n}}};
}

absl::Status BincountCheck(Specs operands, AttrsView attrs) {
  const auto& [n, dtype] = attrs.as<BincountAttrs>();
  const auto refuse = [&](absl::string_view what, absl::string_view remedy) {
    return InvalidArgument({"Bincount: ", what, " of ", operands[0]->ToString(), "; ", remedy});
  };
  if (n < 0) return refuse(absl::StrCat(n, " bins"), "give 0 or more");
  if (dtype == DType::kF32 || dtype == DType::kF64) return absl::OkStatus();
  return refuse(absl::StrCat("counts in ", ToString(dtype)), "they are f32 or f64");
}

DType BincountType(Specs, AttrsView attrs, int) { return attrs.as<BincountAttrs>().dtype; }

absl::Status BincountForward(const OpCall& call) {
  return kernels::Bincount(call.device(), call.operands[0], call.results[0]);
}

const OpDef kBincountOp = {
    .name = "Bincount",
    .describe = BincountRule,
    .attrs = &kAttrsType<BincountAttrs>,
    .types = TypeSet::Integers(),
    .check = BincountCheck,
    .result_dtype = BincountType,
    .every_device = {BincountForward},
};

}  // namespace

absl::Span<const OpDef* const> ReduceOps() {
  static constexpr const OpDef* kOps[] = {&kSumOp, &kMeanOp, &kSumOfSquaresOp, &kBincountOp};
  return kOps;
}

}  // namespace internal

TensorOr Sum(const TensorOr& x, absl::Span<const int> dims) {
  return internal::DispatchReduction(internal::kSumOp, x, dims);
}

TensorOr Mean(const TensorOr& x, absl::Span<const int> dims) {
  return internal::DispatchReduction(internal::kMeanOp, x, dims);
}

TensorOr SumOfSquares(const TensorOr& x) { return Dispatch(internal::kSumOfSquaresOp, {&x}); }

TensorOr Bincount(const TensorOr& ids, int64_t n, DType dtype) {
  return Dispatch(internal::kBincountOp, {&ids}, internal::BincountAttrs{n, dtype});
}

}  // namespace dtensor
