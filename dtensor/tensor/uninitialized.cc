#include "dtensor/tensor/uninitialized.h"

#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/new_tensor.h"

namespace dtensor {

TensorOr Uninitialized(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       DType dtype) {
  static constexpr char kMaker[] = "Uninitialized";
  DT_ASSIGN_OR_RETURN(const SpecPtr spec, internal::SpecOf(context, layout, shape, dtype, kMaker));
  DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context, spec.get()));
  return internal::Made(context, spec.get(), std::move(local), /*row_major=*/true, kMaker);
}

}  // namespace dtensor
