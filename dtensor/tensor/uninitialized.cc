#include "dtensor/tensor/uninitialized.h"

#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

TensorOr Uninitialized(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       DType dtype) {
  if (layout.is_partial()) {
    return InvalidArgument({"Uninitialized: a tensor is not made Partial (", layout.ToString(),
                            "); use FromLocal for terms you have, or make it Replicate"});
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr spec, context.Intern(layout, shape, dtype));
  auto local = Tensor::Empty(context.device(), dtype, spec->local_shape);
  if (!local.ok()) return context.communicator().Fail(local.status());
  TensorImplPtr impl = MakeImpl(context, spec, *std::move(local), /*row_major=*/true);
  impl->lineage = context.NextLineage(*spec, "Uninitialized");
  return DistributedTensor(std::move(impl));
}

}  // namespace dtensor
