// The program's own memory as a tensor, without a copy.
//
//   std::vector<float> values = ...;
//   DT_ASSIGN_OR_RETURN(Tensor tensor, AdoptSpan<float>(device, absl::MakeSpan(values), {2, 3}));
//
// The tensor reads and writes that memory as long as anything refers to it: the tensor, its views,
// what was saved for backward, and what peers still read. Then `deleter` runs, once, in the order
// of the device's work. It may run on another thread (the deferred device's, or that of whoever
// lets go of an exported tensor last), and after the Context and its world have ended. Without a
// deleter the memory must outlive all of these: tell by device.tensors(), or copy (FromHost). Where
// a GPU's work never ends (SetCudaPatience) the deleter never runs: the GPU may still use the
// memory.
//
// Ranks that are threads read adopted memory as their own; between GPUs, what cudaMalloc gave, and
// CUDA's default pool, but of a pool of the program's own only what that pool is opened for
// (cudaMemPoolSetAccess). Between processes it is copied once more
// for each exchange: only what the device allocated lies where other processes can read.
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
  void* data = nullptr;  // the first element; the device's kind of memory. Any for no elements.
  DType dtype = DType::kF32;         // Requires: bools are bytes of 0 or 1
  Dims shape = {};                   // [] is a scalar
  std::optional<Dims> strides = {};  // in elements; row-major if unset
  // Nobody writes there: who is about to write to the tensor (BeforeWrite) gets a copy first, which
  // is what it means from then on.
  bool read_only = false;
  std::function<void()> deleter = nullptr;  // null: nothing is to be done
};

// On an error `deleter` has run. On meta the tensor has a shape and strides alone, and any pointer
// will do; the rest is refused as elsewhere. Errors: kInvalidArgument, naming the shape and the
// remedy, for a null pointer, data that is not aligned to its element, a shape that no tensor has
// (dims.h), strides that are negative, too many or too few, that reach beyond what addresses say,
// or by which two elements may share bytes (but for a stride of 0, a broadcast, to which nothing
// can be written).
absl::StatusOr<Tensor> AdoptMemory(Device& device, ForeignMemory memory);

// An ElementType (dtype.h), const where nothing may be written.
template <typename T>
concept SpanElement = ElementType<std::remove_const_t<T>>;

// Row-major values. Other types do not compile. Errors: also another number of values than the
// shape has.
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
