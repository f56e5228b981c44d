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

// The results of fn(operands), whose gradients are those without Recompute, bit for bit. fn is
// called now, and once more in each Backward that comes by, on tensors with the operands' values;
// it is kept until then, so what it refers to has to live. There it has to do the same again: the
// same operators on tensors that are unchanged, with the same random numbers (Context::random is
// put back), and requires_grad of the leaves that it reads as it was. It may return its operands.
// Where the Context does not record it is called, and that is all. Errors: kInvalidArgument for no
// operand or an undefined one; those of fn. Of Backward: kFailedPrecondition when an operand, or a
// leaf that led to a result, was written to since; kInvalidArgument when fn returns something else
// the second time, or other leaves lead to it (fn must not make leaves of its own); those of fn.
TensorsOr Recompute(absl::Span<const DistributedTensor> operands, const RecomputedFunction& fn,
                    const RecomputeOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_RECOMPUTE_H_
