// Uninitialized: a tensor whose elements are still to be written, as torch.empty.
#ifndef DTENSOR_TENSOR_UNINITIALIZED_H_
#define DTENSOR_TENSOR_UNINITIALIZED_H_

#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// As Full, but the elements are unspecified. The caller must write all of them, on every rank,
// before anything reads one (with BeforeWrite, as for every write). No communication. Errors: those
// of Full.
TensorOr Uninitialized(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       DType dtype);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_UNINITIALIZED_H_
