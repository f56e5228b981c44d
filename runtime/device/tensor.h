// Tensor: one rank's local, strided, typed view of device memory. A cheap handle; copies share
// storage.
//
// Views (Transpose, Narrow, View) never copy, and are aliases: a write through one is visible
// through all. Borrow() gives a value instead: it reads the same memory until that is about to be
// written (BeforeWrite), and then gets a copy of its own. Strides are in elements and may be 0
// (broadcast). Results may not be ready when a call returns: see device.h. Not thread-safe.
#ifndef DTENSOR_RUNTIME_DEVICE_TENSOR_H_
#define DTENSOR_RUNTIME_DEVICE_TENSOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

class Tensor {
 public:
  Tensor() = default;  // undefined: defined() is false
  // Uninitialised, row-major. The device must outlive its tensors; RunLocalRanks ensures that.
  // Errors: kInvalidArgument for a negative size, kResourceExhausted, the device's failure.
  static absl::StatusOr<Tensor> Empty(Device& device, DType dtype, absl::Span<const int64_t> shape);
  // Wraps memory of the caller's; `deleter` runs once, in stream order, when the last view is gone.
  // For memory from other programs use AdoptMemory (interop/adopt.h), which checks its arguments.
  static Tensor Adopt(Device& device, void* data, DType dtype, absl::Span<const int64_t> shape,
                      absl::Span<const int64_t> strides, std::function<void()> deleter);

  bool defined() const { return storage_ != nullptr; }
  Device& device() const;
  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }
  int ndim() const { return static_cast<int>(shape_.size()); }
  int64_t size(int dim) const { return shape_[dim]; }
  int64_t numel() const { return numel_; }
  int64_t bytes() const { return numel_ * SizeOf(dtype_); }
  // Row-major without gaps (dimensions of size 1 may have any stride; empty tensors are
  // contiguous).
  bool is_contiguous() const;
  // Whether it reads the same memory, as an alias or borrowed. False for undefined tensors.
  bool SharesStorageWith(const Tensor& other) const;

  // Address of the first element; null on meta and for no elements. Changes when borrowed memory is
  // copied.
  void* raw() const {
    return numel_ == 0 || storage_->data == nullptr ? nullptr : storage_->data + offset_;
  }
  template <typename T>
  T* data() const {
    return static_cast<T*>(raw());
  }

  // --- Writing in place.
  // Call this before memory is written through any tensor that shares it, unless nobody else has
  // seen that memory yet. For memory of a DistributedTensor call BeforeWrite() of the
  // DistributedTensor instead: it calls this one, and also waits for redistributions and products
  // that still read the memory, which a Tensor does not know of. Tensors that have borrowed this
  // storage get copies of their own; if this storage is itself borrowed, it gets a copy, and raw()
  // changes. The write is counted in version() of all aliases. Requires: defined(). Errors:
  // kResourceExhausted, the device's failure.
  absl::Status BeforeWrite() const;
  // How often BeforeWrite() was called on an alias. Requires: defined().
  uint64_t version() const { return storage_->version; }
  // The same elements as a value: writes to this tensor are not visible there, and the reverse. A
  // copy is made only when one of the two is written. Keeps the memory of this tensor alive.
  // Requires: defined().
  Tensor Borrow() const& { return Tensor(*this).Borrow(); }
  Tensor Borrow() &&;
  // Gives a borrower its copy now. Errors: as BeforeWrite.
  absl::Status EndBorrow() const;
  // Identifies the storage, also after a tensor is gone. Two ids are of one storage (the same
  // tensor or a view, but not a borrower) if a.owner_before(b) and b.owner_before(a) are both
  // false. Unlike an address, an id is not reused as long as somebody has it. Keeps no memory
  // alive.
  std::weak_ptr<const void> storage_id() const { return storage_; }
  // Whether no other tensor has this memory, as an alias or borrowed, and no keeper has it.
  // Requires: defined().
  bool is_only_user() const;
  // Keeps this memory alive for users outside of the device's thread and of the rules above. Any
  // thread may drop the keeper at any time, even after the world's end; the device is kept as long.
  // Before writing to the memory while others read it, call BeforeWrite(), on the device's thread.
  // Requires: defined(). Errors: as EndBorrow(), since borrowed memory is first copied to memory of
  // its own.
  absl::StatusOr<std::shared_ptr<const void>> Keep() const;
  // Whether several indices refer to one element. Also true where dimensions only interleave: a
  // stride is no longer than what all shorter ones reach, as of two rows, 4 apart, of three
  // elements, 3 apart (0 3 6, 4 7 10).
  bool overlaps_itself() const;

  // Views. Requires: dims in range. For View: `offset` is the number of elements from this tensor's
  // first element to the view's, every element is inside the storage, strides are not negative.
  Tensor View(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides,
              int64_t offset) const;
  Tensor Transpose(int dim0, int dim1) const;
  Tensor Narrow(int dim, int64_t begin, int64_t length) const;
  // As a view, if strides allow it. Errors: kFailedPrecondition if a copy would be needed;
  // kInvalidArgument for an undefined tensor, or if the element counts differ.
  absl::StatusOr<Tensor> Reshape(absl::Span<const int64_t> shape) const;
  // A view of shape `shape`, with stride 0 along dimensions that this tensor lacks (leading ones)
  // or in which it has size 1. Requires: broadcastable.
  Tensor BroadcastTo(absl::Span<const int64_t> shape) const;

 private:
  // What aliases share. Frees in stream order.
  struct Storage {
    Storage(Device* device, void* data, int64_t bytes);
    Storage(std::shared_ptr<Storage> lender, void* data, int64_t bytes);
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    ~Storage();
    // Copies borrowed memory to memory of its own.
    absl::Status CopyAway();
    void LeaveLender();
    const Storage* owner() const { return lender != nullptr ? lender.get() : this; }

    Device* const device;
    char* data;
    const int64_t bytes;
    uint64_t version = 0;
    bool owned = true;              // whether to free `data`
    std::function<void()> deleter;  // of adopted memory
    bool was_kept = false;          // by Keep(): any thread may have the last reference
    std::atomic<int> keepers{0};
    std::shared_ptr<Storage> lender;  // whose memory this is, kept alive. Null: this one's
    // Storages that have borrowed from this one form a list, the latest first.
    Storage* first_borrower = nullptr;
    Storage *next = nullptr, *previous = nullptr;  // in the lender's list
  };
  std::shared_ptr<Storage> storage_;
  int64_t offset_ = 0;  // of the first element, in bytes
  DType dtype_ = DType::kF32;
  int64_t numel_ = 0;
  Dims shape_, strides_;
};

// Host data in and out. T is the tensor's C++ type (dtype.h).
// FromHost: `values` may be dropped when it returns; on meta it gives a tensor without values.
// ToHost: row-major, whatever the strides; synchronizes. Errors: kFailedPrecondition on meta, which
// has no values. Errors of both: kInvalidArgument for a wrong size or type, or an undefined tensor;
// kResourceExhausted; the device's failure.
template <typename T>
DTENSOR_EXPORT absl::StatusOr<Tensor> FromHost(Device& device, absl::Span<const T> values,
                                               absl::Span<const int64_t> shape);
template <typename T>
DTENSOR_EXPORT absl::StatusOr<std::vector<T>> ToHost(const Tensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_TENSOR_H_
