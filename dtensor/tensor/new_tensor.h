// What functions that make tensors share. For the sources of this folder.
#ifndef DTENSOR_TENSOR_NEW_TENSOR_H_
#define DTENSOR_TENSOR_NEW_TENSOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::internal {

// Errors: kInvalidArgument, naming the function `maker`, for a Partial layout; Context::Intern's.
absl::StatusOr<SpecPtr> SpecOf(Context& context, const Layout& layout,
                               absl::Span<const int64_t> shape, DType dtype,
                               absl::string_view maker);
// Uninitialized memory for this rank's shard. Errors: failures.
absl::StatusOr<Tensor> NewLocal(Context& context, const Spec* spec);
// The tensor that `maker` returns to its caller. `maker` is kept (Lineage::maker).
DistributedTensor Made(Context& context, const Spec* spec, Tensor local, bool row_major,
                       const char* maker);
// The tensor on a rank that is not on its mesh.
TensorOr WithoutElements(Context& context, const Spec* spec, const char* maker);

}  // namespace dtensor::internal

#endif  // DTENSOR_TENSOR_NEW_TENSOR_H_
