// RmsNorm and LayerNorm. If a row is sharded, each rank computes statistics of its part, and every
// rank merges them. The same holds for the sums that the gradient needs.
#include "dtensor/runtime/kernels/norm.h"

#include "absl/container/inlined_vector.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/shard_stats.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// The number of elements of a row, over all shards.
int64_t RowSize(const Decision& decision) { return decision.operands[0]->shape.back(); }

// The kernels compute all gradients; those that are not wanted go to scratch memory.
using Gradients = absl::InlinedVector<Tensor, 3>;
absl::StatusOr<Gradients> AllGradients(const GradCall& call) {
  Gradients gradients(call.gradients.begin(), call.gradients.end());
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (call.wants(static_cast<int>(i))) continue;
    const Spec& like = *call.decision.operands[i];
    DT_ASSIGN_OR_RETURN(gradients[i], Tensor::Empty(call.device(), like.dtype, like.local_shape));
  }
  return gradients;
}

// The second result is 1/rms of each row, for backward.
absl::Status RmsNormForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &weight = call.operands[1];
  const double eps = call.attrs<RmsNormAttrs>().eps;
  if (call.NumShards("d") == 1) {
    return kernels::RmsNorm(device, x, weight, eps, call.results[0], call.results[1]);
  }
  DT_ASSIGN_OR_RETURN(const Tensor squares, RowStats(device, x));
  DT_RETURN_IF_ERROR(kernels::RowSquares(device, x, squares));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", squares));
  return kernels::RmsNorm(device, x, weight, eps, call.results[0], call.results[1], &all,
                          RowSize(call.decision));
}

absl::Status RmsNormBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &weight = call.operands[1], &rstd = call.results[1];
  const Tensor& dy = call.result_gradients[0];
  DT_ASSIGN_OR_RETURN(const Gradients gradients, AllGradients(call));
  if (call.NumShards("d") == 1) {
    return kernels::RmsNormGrad(device, x, weight, rstd, dy, gradients[0], gradients[1]);
  }
  DT_ASSIGN_OR_RETURN(const Tensor dots, RowStats(device, x));
  DT_RETURN_IF_ERROR(kernels::RmsNormGradDots(device, x, weight, dy, dots));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", dots));
  return kernels::RmsNormGrad(device, x, weight, rstd, dy, gradients[0], gradients[1], &all,
                              RowSize(call.decision));
}

// The second and third results are mean and 1/(standard deviation) of each row, for backward.
absl::Status LayerNormForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &weight = call.operands[1], &bias = call.operands[2];
  const auto run = [&](const Tensor* stats) {
    return kernels::LayerNorm(device, x, weight, bias, call.attrs<LayerNormAttrs>().eps,
                              call.results[0], call.results[1], call.results[2], stats);
  };
  if (call.NumShards("d") == 1) return run(nullptr);
  DT_ASSIGN_OR_RETURN(const Tensor moments, RowStats(device, x, DType::kF64, {3}));
  DT_RETURN_IF_ERROR(kernels::RowMoments(device, x, moments));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", moments));
  return run(&all);
}

absl::Status LayerNormBackward(const GradCall& call) {
  Device& device = call.device();
  const Tensor &x = call.operands[0], &weight = call.operands[1];
  const Tensor &mean = call.results[1], &rstd = call.results[2], &dy = call.result_gradients[0];
  DT_ASSIGN_OR_RETURN(const Gradients gradients, AllGradients(call));
  const auto run = [&](const Tensor* stats) {
    return kernels::LayerNormGrad(device, x, weight, mean, rstd, dy, gradients[0], gradients[1],
                                  gradients[2], stats, RowSize(call.decision));
  };
  if (call.NumShards("d") == 1) return run(nullptr);
  DT_ASSIGN_OR_RETURN(const Tensor sums, RowStats(device, x, {2}));
  DT_RETURN_IF_ERROR(kernels::LayerNormGradSums(device, x, weight, mean, rstd, dy, sums));
  DT_ASSIGN_OR_RETURN(const Tensor all, GatherStats(call, "d", sums));
  return run(&all);
}

DType NormType(Specs operands, AttrsView, int result) {
  return result == 0 ? operands[0]->dtype : AccumulatorOf(operands[0]->dtype);
}

const OpDef kRmsNormOp = {
    .name = "RmsNorm",
    .rule = "... d^, d^ -> ... d^, ...",
    .attrs = &kAttrsType<RmsNormAttrs>,
    .types = TypeSet::Floats(),
    .result_dtype = NormType,
    .every_device = {RmsNormForward, RmsNormBackward},
    .saved_operands = 0b11,
    .saved_results = 0b10,
};

const OpDef kLayerNormOp = {
    .name = "LayerNorm",
    .rule = "... d^, d^, d^ -> ... d^, ..., ...",
    .attrs = &kAttrsType<LayerNormAttrs>,
    .types = TypeSet::Floats(),
    .result_dtype = NormType,
    .every_device = {LayerNormForward, LayerNormBackward},
    .saved_operands = 0b011,
    .saved_results = 0b110,
};

}  // namespace

absl::Span<const OpDef* const> NormOps() {
  static constexpr const OpDef* kOps[] = {&kRmsNormOp, &kLayerNormOp};
  return kOps;
}

}  // namespace internal

TensorOr RmsNorm(const TensorOr& x, const TensorOr& weight, double eps) {
  return Dispatch(internal::kRmsNormOp, {&x, &weight}, internal::RmsNormAttrs{eps});
}

TensorOr LayerNorm(const TensorOr& x, const TensorOr& weight, const TensorOr& bias, double eps) {
  return Dispatch(internal::kLayerNormOp, {&x, &weight, &bias}, internal::LayerNormAttrs{eps});
}

}  // namespace dtensor
