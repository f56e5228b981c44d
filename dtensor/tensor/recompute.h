// Recompute: part of a program that keeps its operands alone for Backward, and is run again there.
// Activations are paid for with time (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
// Cost").
//
//   TensorsOr y = Recompute({x}, [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
//     return block.Call({x[0]});
//   });
//
// Modules do it by themselves where they are told to: Module::set_recomputes.
#ifndef DTENSOR_TENSOR_RECOMPUTE_H_
#define DTENSOR_TENSOR_RECOMPUTE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

using TensorsOr = absl::StatusOr<std::vector<DistributedTensor>>;
using RecomputedFunction = std::function<TensorsOr(absl::Span<const DistributedTensor>)>;

struct RecomputeOptions {
  // Results of collectives in fn, of redistributions and of operators that exchange what they
  // compute (rings, statistics of split dimensions), are kept beside the operands, and taken when
  // fn runs again: it does not communicate then. What is gathered of groups (gather_group.h) is not
  // kept; so are redistributions with options, and what fn makes of tensors that it creates.
  bool keep_collectives = false;
};

// Activation checkpointing, as torch.utils.checkpoint: returns fn(operands), and gradients are bit
// for bit what they would be without Recompute. fn is called now, and again in each Backward that
// reaches it, on tensors with the operands' values. It is kept until then, so whatever it refers to
// must stay alive. The second call must do the same as the first: run the same operators on
// unchanged tensors, draw the same random numbers (Context::random is restored for it), and find
// requires_grad of the leaves that it reads unchanged. fn may return its operands. If the Context
// does not record, fn is simply called. Errors: kInvalidArgument for no
// operand or an undefined one; those of fn. Of Backward: kFailedPrecondition when an operand, or a
// leaf that led to a result, was written to since; kInvalidArgument when fn returns something else
// the second time, or other leaves lead to it (fn must not make leaves of its own); those of fn.
TensorsOr Recompute(absl::Span<const DistributedTensor> operands, const RecomputedFunction& fn,
                    const RecomputeOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_RECOMPUTE_H_
