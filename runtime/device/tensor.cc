#include "dtensor/runtime/device/tensor.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

Tensor::Storage::Storage(Device* device, void* data, int64_t bytes)
    : device(device), data(static_cast<char*>(data)), bytes(bytes) {
  device->CountTensor(1);
}

Tensor::Storage::Storage(std::shared_ptr<Storage> from, void* data, int64_t bytes)
    : device(from->device), data(static_cast<char*>(data)), bytes(bytes), lender(std::move(from)) {
  next = std::exchange(lender->first_borrower, this);
  if (next != nullptr) next->previous = this;
}

Tensor::Storage::~Storage() {
  if (lender != nullptr) {
    LeaveLender();
    return;
  }
  if (deleter) {
    device->Defer(std::move(deleter));
  } else if (owned && bytes > 0) {
    was_kept ? device->FreeFromAnyThread(data, bytes) : device->Free(data, bytes);
  }
  // Last: a thread that sees 0 may destroy the device.
  was_kept ? device->UncountTensorFromAnyThread() : device->CountTensor(-1);
}

void Tensor::Storage::LeaveLender() {
  (previous != nullptr ? previous->next : lender->first_borrower) = next;
  if (next != nullptr) next->previous = previous;
  next = previous = nullptr;
  lender = nullptr;
}

absl::Status Tensor::Storage::CopyAway() {
  DT_CHECK(lender != nullptr);
  DT_ASSIGN_OR_RETURN(void* const copy, device->Allocate(bytes));
  if (copy != nullptr && data != nullptr) {
    if (absl::Status status = device->CopyOnDevice(copy, data, bytes); !status.ok()) {
      device->Free(copy, bytes);
      return status;
    }
  }
  data = static_cast<char*>(copy);
  device->CountTensor(1);  // before the lender's count may fall
  LeaveLender();
  return absl::OkStatus();
}

namespace {

// One past the last element that a tensor reaches, relative to its first.
int64_t Extent(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return 0;
    last += (shape[i] - 1) * strides[i];
  }
  return last + 1;
}

// The size of a tensor in bytes, or an error that says why such a tensor cannot exist.
absl::StatusOr<int64_t> BytesOf(DType dtype, absl::Span<const int64_t> shape) {
  int64_t bytes = SizeOf(dtype);
  bool fits = true, empty = false;
  for (int64_t size : shape) {
    if (size < 0) return InvalidArgument({"a tensor has no shape ", DimsToString(shape)});
    empty = empty || size == 0;
    // Strides must be representable even if there are no elements.
    fits = fits && !__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes);
  }
  if (fits) return empty ? 0 : bytes;
  return absl::ResourceExhaustedError(absl::StrCat("a tensor of shape ", DimsToString(shape),
                                                   " has more bytes than 63 bits count"));
}

// Strides that view the elements of (shape, strides) as shape `to`; none if only a copy could do
// it. Neighbouring dimensions that are contiguous with one another form a group; each group must be
// the product of neighbouring dimensions of `to`. Requires: the same number of elements, at least
// one.
bool ReshapeStrides(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides,
                    absl::Span<const int64_t> to, Dims& result) {
  result.assign(to.size(), 0);
  int64_t j = static_cast<int64_t>(to.size()) - 1;
  int64_t group = 1;  // elements of the group so far
  int64_t inner_stride = 1;
  for (int64_t i = static_cast<int64_t>(shape.size()) - 1; i >= 0; --i) {
    if (group == 1) inner_stride = strides[i];
    group *= shape[i];
    int64_t outer = i - 1;
    while (outer >= 0 && shape[outer] == 1) --outer;
    const bool continues = outer >= 0 && strides[outer] == group * inner_stride;
    if (continues) continue;
    int64_t stride = inner_stride;
    for (int64_t left = group; left > 1; --j) {
      if (left % to[j] != 0) return false;
      result[j] = stride;
      stride *= to[j];
      left /= to[j];
    }
    group = 1;
  }
  // The remaining dimensions of `to` have size 1; any stride is right.
  for (; j >= 0; --j) result[j] = j + 1 < static_cast<int64_t>(to.size()) ? result[j + 1] : 1;
  return true;
}

}  // namespace

absl::StatusOr<Tensor> Tensor::Empty(Device& device, DType dtype, absl::Span<const int64_t> shape) {
  DT_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(dtype, shape));
  DT_ASSIGN_OR_RETURN(void* const data, device.Allocate(bytes));
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(&device, data, bytes);
  tensor.dtype_ = dtype;
  tensor.numel_ = bytes / SizeOf(dtype);
  tensor.shape_.assign(shape.begin(), shape.end());
  tensor.strides_ = RowMajorStrides(shape);
  return tensor;
}

Tensor Tensor::Adopt(Device& device, void* data, DType dtype, absl::Span<const int64_t> shape,
                     absl::Span<const int64_t> strides, std::function<void()> deleter) {
  DT_REQUIRE(shape.size() == strides.size(), "Tensor::Adopt: as many strides as sizes are needed");
  Tensor tensor;
  tensor.storage_ = std::make_shared<Storage>(&device, device.is_meta() ? nullptr : data,
                                              Extent(shape, strides) * SizeOf(dtype));
  tensor.storage_->owned = false;
  tensor.storage_->deleter = std::move(deleter);
  tensor.dtype_ = dtype;
  tensor.numel_ = NumElements(shape);
  tensor.shape_.assign(shape.begin(), shape.end());
  tensor.strides_.assign(strides.begin(), strides.end());
  return tensor;
}

Device& Tensor::device() const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::device()");
  return *storage_->device;
}

bool Tensor::is_contiguous() const {
  if (numel_ == 0) return true;
  int64_t stride = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

bool Tensor::SharesStorageWith(const Tensor& other) const {
  return defined() && other.defined() && storage_->owner() == other.storage_->owner();
}

absl::Status Tensor::BeforeWrite() const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::BeforeWrite()");
  DT_RETURN_IF_ERROR(EndBorrow());
  Storage& storage = *storage_;
  while (storage.first_borrower != nullptr) DT_RETURN_IF_ERROR(storage.first_borrower->CopyAway());
  ++storage.version;
  return absl::OkStatus();
}

// A borrower covers the range from this tensor's first element to its last.
Tensor Tensor::Borrow() && {
  DT_REQUIRE_DEFINED(defined(), "Tensor::Borrow()");
  void* const first = raw();
  std::shared_ptr<Storage> lender =
      storage_->lender != nullptr ? storage_->lender : std::move(storage_);
  storage_ = std::make_shared<Storage>(std::move(lender), first,
                                       Extent(shape_, strides_) * SizeOf(dtype_));
  offset_ = 0;
  return std::move(*this);
}

absl::Status Tensor::EndBorrow() const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::EndBorrow()");
  return storage_->lender == nullptr ? absl::OkStatus() : storage_->CopyAway();
}

absl::StatusOr<std::shared_ptr<const void>> Tensor::Keep() const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::Keep()");
  DT_RETURN_IF_ERROR(EndBorrow());  // only the device's thread may leave a lender
  std::shared_ptr<const void> keeper;
  DT_RETURN_IF_ERROR(NoThrow([&] {
    // The count is decreased before the pointer is released: is_only_user() acquires it, and is
    // therefore ordered after what the keeper's owner read.
    storage_->was_kept = true;
    ++storage_->keepers;
    keeper = std::shared_ptr<const void>(storage_->data, [kept = storage_](const void*) mutable {
      kept->keepers.fetch_sub(1, std::memory_order_release);
      kept = nullptr;
    });
    return absl::OkStatus();
  }));
  return keeper;
}

bool Tensor::is_only_user() const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::is_only_user()");
  return storage_->keepers.load(std::memory_order_acquire) == 0 && storage_.use_count() == 1 &&
         storage_->lender == nullptr && storage_->first_borrower == nullptr;
}

bool Tensor::overlaps_itself() const {
  if (numel_ == 0) return false;
  absl::InlinedVector<std::pair<int64_t, int64_t>, 6> dims;  // strides and sizes
  for (int d = 0; d < ndim(); ++d) {
    if (shape_[d] > 1) dims.emplace_back(strides_[d], shape_[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // of the dimensions before, from their first element to the last
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

Tensor Tensor::View(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides,
                    int64_t offset) const {
  DT_REQUIRE_DEFINED(defined(), "Tensor::View()");
  DT_REQUIRE(shape.size() == strides.size(), "Tensor::View: as many strides as sizes are needed");
  DT_REQUIRE(std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s >= 0; }),
             "Tensor::View: strides must not be negative");
  Tensor view;
  view.numel_ = NumElements(shape);
  if (view.numel_ > 0) {
    // Any stride and offset may be given, so their bytes may exceed an int64_t.
    const absl::int128 first = offset_ + absl::int128(offset) * SizeOf(dtype_);
    absl::int128 last = first;
    for (size_t d = 0; d < shape.size(); ++d) {
      last += absl::int128(shape[d] - 1) * strides[d] * SizeOf(dtype_);
    }
    DT_REQUIRE(first >= 0 && last <= storage_->bytes - SizeOf(dtype_),
               "Tensor::View: the view reaches outside of its tensor's memory");
    view.offset_ = static_cast<int64_t>(first);
  }
  // An empty tensor has no address from which to continue.
  DT_REQUIRE(view.numel_ == 0 || numel_ > 0, "Tensor::View: an empty tensor shows no elements");
  view.storage_ = storage_;
  view.dtype_ = dtype_;
  view.shape_.assign(shape.begin(), shape.end());
  view.strides_.assign(strides.begin(), strides.end());
  return view;
}

Tensor Tensor::Transpose(int dim0, int dim1) const {
  DT_REQUIRE(dim0 >= 0 && dim0 < ndim() && dim1 >= 0 && dim1 < ndim(),
             "Tensor::Transpose: the tensor has no such dimension");
  Tensor view = *this;
  std::swap(view.shape_[dim0], view.shape_[dim1]);
  std::swap(view.strides_[dim0], view.strides_[dim1]);
  return view;
}

Tensor Tensor::Narrow(int dim, int64_t begin, int64_t length) const {
  DT_REQUIRE(dim >= 0 && dim < ndim(), "Tensor::Narrow: the tensor has no such dimension");
  DT_REQUIRE(begin >= 0 && length >= 0 && begin <= shape_[dim] - length,
             "Tensor::Narrow: the range lies outside of the dimension");
  Tensor view = *this;
  view.shape_[dim] = length;
  view.numel_ = NumElements(view.shape_);
  if (view.numel_ > 0) view.offset_ += begin * strides_[dim] * SizeOf(dtype_);
  return view;
}

absl::StatusOr<Tensor> Tensor::Reshape(absl::Span<const int64_t> shape) const {
  if (!defined()) return InvalidArgument({"Reshape: the tensor is undefined"});
  DT_RETURN_IF_ERROR(BytesOf(dtype_, shape).status());
  if (NumElements(shape) != numel_) {
    return InvalidArgument({"Reshape of ", DimsToString(shape_), " to ", DimsToString(shape),
                            ": the numbers of elements differ"});
  }
  Tensor view = *this;
  view.shape_.assign(shape.begin(), shape.end());
  if (is_contiguous()) {
    view.strides_ = RowMajorStrides(shape);
  } else if (!ReshapeStrides(shape_, strides_, shape, view.strides_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "Reshape of ", DimsToString(shape_), " with strides ", DimsToString(strides_), " to ",
        DimsToString(shape), ": strides cannot say it; copy the tensor first"));
  }
  return view;
}

Tensor Tensor::BroadcastTo(absl::Span<const int64_t> shape) const {
  const int leading = static_cast<int>(shape.size()) - ndim();
  DT_REQUIRE_DEFINED(defined(), "Tensor::BroadcastTo()");
  DT_REQUIRE(leading >= 0, "Tensor::BroadcastTo: the shape has fewer dimensions than the tensor");
  Tensor view = *this;
  view.numel_ = NumElements(shape);
  view.shape_.assign(shape.begin(), shape.end());
  view.strides_.assign(shape.size(), 0);
  for (int i = 0; i < ndim(); ++i) {
    const int64_t size = shape[leading + i];
    DT_REQUIRE(shape_[i] == size || shape_[i] == 1,
               "Tensor::BroadcastTo: only dimensions of size 1 can be broadcast");
    if (shape_[i] == size) view.strides_[leading + i] = strides_[i];
  }
  return view;
}

namespace {

// Appends the elements of dims [dim, ndim) to `out`, row-major.
template <typename T>
void Gather(const T* data, const Dims& shape, const Dims& strides, size_t dim,
            std::vector<T>& out) {
  if (dim == shape.size()) {
    out.push_back(*data);
    return;
  }
  for (int64_t i = 0; i < shape[dim]; ++i) {
    Gather(data + i * strides[dim], shape, strides, dim + 1, out);
  }
}

}  // namespace

template <typename T>
absl::StatusOr<Tensor> FromHost(Device& device, absl::Span<const T> values,
                                absl::Span<const int64_t> shape) {
  DT_ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(DTypeOf<T>(), shape));
  if (bytes != static_cast<int64_t>(values.size() * sizeof(T))) {
    return InvalidArgument({"FromHost: shape ", DimsToString(shape), " does not have ",
                            absl::StrCat(values.size()), " elements"});
  }
  DT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(device, DTypeOf<T>(), shape));
  if (device.is_meta() || bytes == 0) return tensor;
  if (device.kind() == Device::Kind::kCpu) {
    DT_RETURN_IF_ERROR(device.CopyFromHost(tensor.raw(), values.data(), bytes));
    return tensor;
  }
  // The copy may begin after we return, so it reads a copy of our own, which is freed after it.
  std::shared_ptr<T[]> staged;
  DT_RETURN_IF_ERROR(NoThrow([&] {
    staged = std::make_shared_for_overwrite<T[]>(values.size());
    return absl::OkStatus();
  }));
  std::memcpy(staged.get(), values.data(), bytes);
  DT_RETURN_IF_ERROR(device.CopyFromHost(tensor.raw(), staged.get(), bytes));
  device.Defer([staged] {});
  return tensor;
}

// Strided tensors are fetched as the whole memory range that they span; gathering is then done by
// the host on every device. Throws std::bad_alloc.
template <typename T>
absl::Status Fetch(const Tensor& tensor, std::vector<T>& values) {
  Device& device = tensor.device();
  const int64_t extent = Extent(tensor.shape(), tensor.strides());
  auto span = std::make_unique_for_overwrite<T[]>(extent);
  if (!tensor.is_contiguous()) values.reserve(tensor.numel());
  const absl::Status copied = device.CopyToHost(span.get(), tensor.raw(), extent * sizeof(T));
  // Also if the copy failed: earlier work may still write to what the caller holds.
  DT_RETURN_IF_ERROR(device.Synchronize());
  DT_RETURN_IF_ERROR(copied);
  if (tensor.is_contiguous()) {
    values.assign(span.get(), span.get() + tensor.numel());
  } else {
    Gather(span.get(), tensor.shape(), tensor.strides(), 0, values);
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::vector<T>> ToHost(const Tensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"ToHost: the tensor is undefined"});
  if (tensor.dtype() != DTypeOf<T>()) {
    return InvalidArgument({"ToHost: the tensor's type is ", ToString(tensor.dtype()), ", not ",
                            ToString(DTypeOf<T>())});
  }
  if (tensor.device().is_meta()) {
    return absl::FailedPreconditionError(
        "ToHost: tensors on the meta device have shapes but no values");
  }
  // A broadcast view may have more elements than memory has bytes.
  DT_RETURN_IF_ERROR(BytesOf(tensor.dtype(), tensor.shape()).status());
  std::vector<T> values;
  const absl::Status fetched = NoThrow([&] { return Fetch(tensor, values); });
  if (absl::IsResourceExhausted(fetched)) {
    return absl::ResourceExhaustedError(absl::StrCat("ToHost of ", DimsToString(tensor.shape()),
                                                     " ", ToString(tensor.dtype()), ": ",
                                                     fetched.message()));
  }
  DT_RETURN_IF_ERROR(fetched);
  return values;
}

#define DT_INSTANTIATE(T)                                                              \
  template absl::StatusOr<Tensor> FromHost(Device& device, absl::Span<const T> values, \
                                           absl::Span<const int64_t> shape);           \
  template absl::StatusOr<std::vector<T>> ToHost(const Tensor& tensor);

DT_INSTANTIATE(float)
DT_INSTANTIATE(double)
DT_INSTANTIATE(BFloat16)
DT_INSTANTIATE(Float16)
DT_INSTANTIATE(int32_t)
DT_INSTANTIATE(int64_t)
DT_INSTANTIATE(bool)

}  // namespace dtensor
