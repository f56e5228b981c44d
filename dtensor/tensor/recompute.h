// Recompute: runs a part of a program of which only the operands are kept for Backward, where it is
// run again. This trades time for the memory of activations (Chen et al. 2016, "Training Deep Nets
// with Sublinear Memory Cost").
//
//   TensorsOr y = Recompute({x}, [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
//     return block.Call({x[0]});
//   });
//
// Modules do this on their own if asked to: Module::set_recomputes.
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
  // Also keeps the results of collectives in fn: of redistributions, and of operators that
  // communicate inside (rings, statistics over sharded dimensions). When fn runs again, it takes
  // these results instead of communicating. Not kept, so communicated again: parameters gathered by
  // gather groups (gather_group.h), redistributions with options, and collectives on tensors that
  // fn itself creates.
  bool keep_collectives = false;
};

// Activation checkpointing, as torch.utils.checkpoint: returns fn(operands), and gradients are bit
// for bit what they would be without Recompute. fn is called now, and again in each Backward that
// reaches it, on tensors with the operands' values. It is kept until then, so whatever it refers to
// must stay alive. The second call must do the same as the first: run the same operators on
// unchanged tensors, draw the same random numbers (Context::random is restored for it), and find
// requires_grad of the leaves that it reads unchanged. fn may return its operands. If the Context
// does not record, fn is simply called. Errors: kInvalidArgument for no operand or an undefined
// one; those of fn. Of Backward: kFailedPrecondition when an operand, or a leaf that led to a
// result, was written to since (of what wants no gradient, as a buffer, it does not know: do not
// write to that in between); kInvalidArgument when fn returns something else the second time, or
// other leaves lead to it (fn must not make leaves of its own); those of fn.
TensorsOr Recompute(absl::Span<const DistributedTensor> operands, const RecomputedFunction& fn,
                    const RecomputeOptions& options = {});

// Whether a function of Recompute() runs again, for Backward. What a function does besides making
// its results, such as counting its calls or keeping running statistics, it does where this is
// false.
bool IsRecomputing(const Context& context);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_RECOMPUTE_H_
