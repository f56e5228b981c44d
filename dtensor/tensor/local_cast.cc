#include "dtensor/tensor/local_cast.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/uninitialized.h"

namespace dtensor {

TensorOr LocalCast(const TensorOr& x, DType dtype) {
  DT_RETURN_IF_ERROR(x.status());
  if (x->dtype() == dtype) return x->Detach();
  if (x->layout().is_partial()) {
    return InvalidArgument({"LocalCast: ", x->ToString(), " is Partial; Redistribute it first"});
  }
  Context& context = x->context();
  DT_ASSIGN_OR_RETURN(DistributedTensor made,
                      Uninitialized(context, x->layout(), x->shape(), dtype));
  absl::Status status =
      kernels::Unary(context.device(), kernels::UnaryOp::kCopy, x->local(), made.local());
  if (!status.ok()) return context.communicator().Fail(status);
  return made;
}

}  // namespace dtensor
