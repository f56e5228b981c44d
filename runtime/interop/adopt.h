// The program's own memory as a tensor, without a copy.
//
//   std::vector<float> values = ...;
//   DT_ASSIGN_OR_RETURN(Tensor tensor, AdoptSpan<float>(device, absl::MakeSpan(values), {2, 3}));
//
// The tensor uses that memory as long as anything refers to it: the tensor, its views, what was
// saved for backward, and what peers still read. After that, `deleter` runs once, in the order of
// the device's work. It may run on another thread (the deferred device's, or the one that drops the
// last reference to an exported tensor), and after the Context and its world have ended. Without a
// deleter, the memory must outlive all of these: check device.tensors(), or copy (FromHost). If a
// GPU's work never ends (SetCudaPatience), the deleter never runs, since the GPU may still use the
// memory.
//
// Ranks that are threads read adopted memory like their own. Between GPUs, this applies to memory
// of cudaMalloc and of CUDA's default pool; of a pool of the program's own, only if that pool
// grants access (cudaMemPoolSetAccess). Between processes, adopted memory is copied once more for
// each exchange: only what the device itself allocated can be read by other processes.
#ifndef DTENSOR_RUNTIME_INTEROP_ADOPT_H_
#define DTENSOR_RUNTIME_INTEROP_ADOPT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct ForeignMemory {
  void* data = nullptr;       // the first element, in the device's kind of memory; unused if empty
  DType dtype = DType::kF32;  // Requires: bools are bytes of 0 or 1
  Dims shape = {};            // [] is a scalar
  std::optional<Dims> strides = {};  // in elements; row-major if unset
  // True if nobody may write to the memory: before the tensor is written (BeforeWrite), it gets a
  // copy, and uses that from then on.
  bool read_only = false;
  std::function<void()> deleter = nullptr;  // null: nothing is called
};

// After an error, `deleter` has run. On meta the tensor has only a shape and strides, and any
// pointer is accepted; everything else is checked as elsewhere. Errors: kInvalidArgument, naming
// the shape and the remedy, for a null pointer, data that is not aligned to its element, a shape
// that no tensor can have (dims.h), and strides that are negative, too many or too few, reach
// beyond the address space, or let two elements share bytes (except a stride of 0, a broadcast, to
// which nothing can be written); and for memory that a GPU cannot reach (Device::CheckReach).
absl::StatusOr<Tensor> AdoptMemory(Device& device, ForeignMemory memory);

// An ElementType (dtype.h), const if the memory is read-only.
template <typename T>
concept SpanElement = ElementType<std::remove_const_t<T>>;

// Row-major values. Other types do not compile. Errors: as AdoptMemory, and if the number of values
// differs from the shape's.
template <SpanElement T>
absl::StatusOr<Tensor> AdoptSpan(Device& device, absl::Span<T> values,
                                 absl::Span<const int64_t> shape,
                                 std::function<void()> deleter = nullptr);

// Implementation details only below.

namespace internal {
absl::StatusOr<Tensor> AdoptElements(Device& device, int64_t elements, ForeignMemory memory);
}  // namespace internal

template <SpanElement T>
absl::StatusOr<Tensor> AdoptSpan(Device& device, absl::Span<T> values,
                                 absl::Span<const int64_t> shape, std::function<void()> deleter) {
  using Element = std::remove_const_t<T>;
  return internal::AdoptElements(device, static_cast<int64_t>(values.size()),
                                 {.data = const_cast<Element*>(values.data()),
                                  .dtype = DTypeOf<Element>(),
                                  .shape = Dims(shape.begin(), shape.end()),
                                  .read_only = std::is_const_v<T>,
                                  .deleter = std::move(deleter)});
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_INTEROP_ADOPT_H_
