// Copies between local tensors of any strides. Conventions: elementwise.h.
#ifndef DTENSOR_RUNTIME_KERNELS_COPY_H_
#define DTENSOR_RUNTIME_KERNELS_COPY_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// dst = src, of the same shape and type. dst may be any view whose elements do not overlap, such as
// a part of a larger tensor, which kernels with row-major outputs cannot write.
absl::Status Copy(Device& device, const Tensor& src, const Tensor& dst);

// `x` itself if it is row-major, else a row-major copy. Errors: kResourceExhausted.
absl::StatusOr<Tensor> Contiguous(Device& device, const Tensor& x);
// Always a row-major copy. Errors: kResourceExhausted.
absl::StatusOr<Tensor> Duplicate(Device& device, const Tensor& x);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_COPY_H_
