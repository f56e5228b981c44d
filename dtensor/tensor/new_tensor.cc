#include "dtensor/tensor/new_tensor.h"

#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor::internal {

absl::StatusOr<Tensor> NewLocal(Context& context, const Spec* spec) {
  auto local = Tensor::Empty(context.device(), spec->dtype, spec->local_shape);
  if (!local.ok()) return context.communicator().Fail(local.status());
  return local;
}

DistributedTensor Made(Context& context, const Spec* spec, Tensor local, bool row_major,
                       const char* maker) {
  TensorImplPtr impl = MakeImpl(context, spec, std::move(local), row_major);
  impl->lineage = context.NextLineage(*spec, maker);
  return DistributedTensor(std::move(impl));
}

TensorOr WithoutElements(Context& context, const Spec* spec, const char* maker) {
  DT_ASSIGN_OR_RETURN(Tensor local, NewLocal(context, spec));
  return Made(context, spec, std::move(local), /*row_major=*/true, maker);
}

absl::StatusOr<SpecPtr> SpecOf(Context& context, const Layout& layout,
                               absl::Span<const int64_t> shape, DType dtype,
                               absl::string_view maker) {
  if (layout.is_partial()) {
    return InvalidArgument({maker, ": a tensor is not made Partial (", layout.ToString(),
                            "); use FromLocal for terms you have, or make it Replicate"});
  }
  return context.Intern(layout, shape, dtype);
}

}  // namespace dtensor::internal
