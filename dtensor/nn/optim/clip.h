// Clipping by the global norm of all gradients.
#ifndef DTENSOR_NN_OPTIM_CLIP_H_
#define DTENSOR_NN_OPTIM_CLIP_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct ClipResult {
  DistributedTensor norm;  // replicated scalar f32 (f64 for f64): of all gradients on a mesh
  // min(1, max_norm / (norm + 1e-6)); NaN if the norm is NaN. Pass it to Optimizer::Step.
  DistributedTensor scale;
};
// Computes the global norm of the parameters' gradients, and the factor that clips it to max_norm;
// the gradients themselves are not changed. Each element of a global tensor counts once, however it
// is replicated. max_norm <= 0: no clipping, scale is 1. Parameters without a gradient are skipped.
// Parameters of pipeline stages, each on a mesh of its own, are clipped apart, and each stage gets
// a norm of its own; ranks of other stages may make the call too.
// `grad_factor`: the true gradients are the stored ones times this (1 / loss scale, if the loss was
// scaled: loss_scaler.h). The norm is that of the true gradients, and scale includes the factor.
// Collective: one all-reduce for each set of axes that shards gradients. Errors, before anything
// moves: kInvalidArgument if there are no parameters, one is undefined, listed twice or of another
// Context, none has a gradient, only some gradients are f64, or they lie on two meshes (clip them
// separately); kFailedPrecondition if a gradient is Partial or has another layout than its
// parameter (call ReduceGradients). Then failures.
absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm, double grad_factor = 1);

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_CLIP_H_
