// A tensor whose elements are yet to be written: memory without a pass over it.
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

// As Full, but that elements have any values until somebody writes them: whoever asks for it writes
// all of them, on every rank, before anything reads one (BeforeWrite, as for every write). No
// communication. Errors: those of Full.
TensorOr Uninitialized(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       DType dtype);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_UNINITIALIZED_H_
