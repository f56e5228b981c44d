// AdamW and clipping by the global norm. States live where their parameters live.
#ifndef DTENSOR_NN_OPTIMIZER_H_
#define DTENSOR_NN_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

class AdamW {
 public:
  // Decoupled weight decay applies to parameters with two or more dimensions. m and v are f32 (f64
  // for f64). Errors: kInvalidArgument for an undefined tensor, one that is listed twice, tensors
  // of two Contexts, one that is no floating leaf that requires gradients, or whose local data is
  // not row-major; failures.
  static absl::StatusOr<AdamW> Create(std::vector<DistributedTensor> parameters,
                                      const AdamWOptions& options);

  // One step in place: gradients times `grad_scale`, a replicated scalar, f32 (f64 for f64
  // parameters), or undefined for 1. Parameters without a gradient stay. No communication.
  // Errors, before anything is written: kFailedPrecondition when a gradient is Partial or lies
  // elsewhere than its parameter (call ReduceGradients); kInvalidArgument for a scale of another
  // type, shape, layout or Context than a parameter that has a gradient needs. Then failures.
  absl::Status Step(double lr, const DistributedTensor& grad_scale = {});
  void ClearGradients();

 private:
  AdamW() = default;
  std::vector<DistributedTensor> parameters_;
  std::vector<Tensor> m_, v_;  // this rank's shards
  AdamWOptions options_;
  int64_t step_ = 0;
};

struct ClipResult {
  DistributedTensor norm;   // replicated scalar f32 (f64 for f64): of all gradients together
  DistributedTensor scale;  // min(1, max_norm / (norm + 1e-6)): hand it to AdamW::Step
};
// The global norm of the parameters' gradients, each element of the global tensors counted once,
// however it is replicated. max_norm <= 0: scale 1. Parameters without a gradient are passed over.
// Collective: one all-reduce for each set of axes that shards gradients. Errors, before anything
// moves: kInvalidArgument when there are no parameters, one is undefined, listed twice or of
// another Context, none has a gradient, or some gradients are f64 and some are not (clip them
// apart);
// kFailedPrecondition when a gradient is Partial or lies elsewhere than its parameter (call
// ReduceGradients). Then failures.
absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm);

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIMIZER_H_
