// Clipping by the global norm of all gradients.
#ifndef DTENSOR_NN_OPTIM_CLIP_H_
#define DTENSOR_NN_OPTIM_CLIP_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct ClipResult {
  DistributedTensor norm;  // replicated scalar f32 (f64 for f64): of all gradients
  // min(1, max_norm / (norm + 1e-6)); NaN if the norm is NaN. Pass it to Optimizer::Step. Squares
  // are added up in the norm's type: in f32 a norm above 1.8e19 is infinite, and scale is 0.
  DistributedTensor scale;
};
// Computes the global norm of the parameters' gradients, and the factor that clips it to max_norm;
// the gradients themselves are not changed. Each element of a global tensor counts once, however it
// is replicated. max_norm <= 0: no clipping, scale is 1. Parameters without a gradient are skipped.
// `grad_factor`: the true gradients are the stored ones times this (1 / loss scale, if the loss was
// scaled: loss_scaler.h). The norm is that of the true gradients, and scale includes the factor.
//
// The parameters may be on several meshes, as those of a pipeline's stages. Then all ranks of these
// meshes give all of the parameters, and the results are on a mesh that joins these ranks. If each
// rank gives the parameters of its own stage alone, each stage gets a norm of its own. Even so, the
// optimizer of a stage needs the weights of other stages that it reads (RedistributeKept,
// gather_again.h).
//
// Collective: one all-reduce for each set of axes that shards gradients, and one exchange for each
// mesh if there are several. Errors, before anything moves: kInvalidArgument for a max_norm that is
// NaN, if there are no parameters, one is undefined, listed twice or of another Context, none has a
// gradient, or only some gradients are f64; kFailedPrecondition if a gradient is Partial or has
// another layout than its parameter (call ReduceGradients). Then failures.
absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm, double grad_factor = 1);

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_CLIP_H_
