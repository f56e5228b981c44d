// Tensor: one rank's local, strided, typed view of device memory. A cheap handle; copies share
// storage.
//
// Views (Transpose, Narrow, View) never copy. Strides are in elements and may be 0 (broadcast).
// Results may not be ready when a call returns: see device.h. Not thread-safe.
#ifndef DTENSOR_RUNTIME_DEVICE_TENSOR_H_
#define DTENSOR_RUNTIME_DEVICE_TENSOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  // Uninitialised, row-major. The device outlives its tensors.
  // Errors: kInvalidArgument for a negative size, kResourceExhausted, the device's failure.
  static absl::StatusOr<Tensor> Empty(Device& device, DType dtype, absl::Span<const int64_t> shape);
  // Memory of the caller's; `deleter` runs once, in stream order, when the last view is gone.
  static Tensor Adopt(Device& device, void* data, DType dtype, absl::Span<const int64_t> shape,
                      absl::Span<const int64_t> strides, std::function<void()> deleter);

  bool defined() const { return storage_ != nullptr; }
  Device& device() const;
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t numel() const { return numel_; }
  int64_t bytes() const { return numel_ * SizeOf(dtype_); }
  // Row-major without gaps (dimensions of size 1 may have any stride; empty tensors are
  // contiguous).
  bool is_contiguous() const;
  bool SharesStorageWith(const Tensor& other) const { return storage_ == other.storage_; }

  void* raw() const { return data_; }  // the first element; null on meta and for no elements
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  // Views. Requires: dims in range; View: `offset` elements from this tensor's first to the view's,
  // and every element of it inside the storage; strides not negative.
  Tensor View(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides,
              int64_t offset) const;
  Tensor Transpose(int dim0, int dim1) const;
  Tensor Narrow(int dim, int64_t begin, int64_t length) const;
  // As a view where strides allow it. Errors: kFailedPrecondition where only a copy could do it;
  // kInvalidArgument when the element counts differ.
  absl::StatusOr<Tensor> Reshape(absl::Span<const int64_t> shape) const;
  // Elements of `shape` seen through stride 0 where this tensor has size 1 or no such (leading)
  // dimension. Requires: broadcastable.
  Tensor BroadcastTo(absl::Span<const int64_t> shape) const;

 private:
  struct Storage;  // device, pointer, bytes or deleter; frees in stream order
  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t numel_ = 0;
  Dims shape_, strides_;
};

// Host data in and out. T is the tensor's C++ type (dtype.h).
// FromHost: `values` may go when it returns; on meta it gives a tensor without values.
// ToHost: synchronizes. Errors: kFailedPrecondition on meta (no values there).
// Errors of both: kInvalidArgument for a wrong size or type; the device's failure.
template <typename T>
absl::StatusOr<Tensor> FromHost(Device& device, absl::Span<const T> values,
                                absl::Span<const int64_t> shape);
template <typename T>
absl::StatusOr<std::vector<T>> ToHost(const Tensor& tensor);  // row-major, whatever the strides

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_TENSOR_H_
