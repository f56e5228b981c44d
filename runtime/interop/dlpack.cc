#include "dtensor/runtime/interop/dlpack.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/interop/adopt.h"
#include "dtensor/runtime/interop/dlpack_abi.h"

namespace dtensor {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 0;  // the oldest version that has all we use
constexpr int kMaxDims = 64;                // the most of any library that exchanges tensors

struct TypeCode {
  DType dtype;
  uint8_t code, bits;
};
constexpr TypeCode kTypeCodes[] = {
    {DType::kF32, kDLFloat, 32}, {DType::kF64, kDLFloat, 64}, {DType::kBF16, kDLBfloat, 16},
    {DType::kF16, kDLFloat, 16}, {DType::kI32, kDLInt, 32},   {DType::kI64, kDLInt, 64},
    {DType::kBool, kDLBool, 8},
};

DLDataType ToDlType(DType dtype) {
  for (const TypeCode& known : kTypeCodes) {
    if (known.dtype == dtype) return {known.code, known.bits, 1};
  }
  DT_CHECK(false);
}

absl::StatusOr<DType> FromDlType(const DLDataType& type) {
  for (const TypeCode& known : kTypeCodes) {
    if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return known.dtype;
  }
  return InvalidArgument({"FromDlpack: there is no type of code ", absl::StrCat(type.code), ", ",
                          absl::StrCat(type.bits), " bits and ", absl::StrCat(type.lanes),
                          " lanes here; convert it to f32, f64, bf16, f16, i32, i64 or bool, of "
                          "one lane"});
}

bool IsHost(const DLDevice& device) {
  const int32_t type = device.device_type;
  return type == kDLCPU || type == kDLCUDAHost || type == kDLROCMHost;
}

absl::Status CheckDevice(const Device& ours, const DLDevice& theirs) {
  const bool cuda = ours.kind() == Device::Kind::kCuda;
  const bool same =
      cuda ? theirs.device_type == kDLCUDA && theirs.device_id == ours.ordinal() : IsHost(theirs);
  if (same || ours.is_meta()) return absl::OkStatus();
  return InvalidArgument(
      {"FromDlpack: the tensor lies on DLPack device ",
       absl::StrCat(static_cast<int32_t>(theirs.device_type), ":", theirs.device_id), ", and ",
       ToString(ours.kind()), " is ",
       cuda ? absl::StrCat(static_cast<int32_t>(kDLCUDA), ":", ours.ordinal())
            : absl::StrCat(static_cast<int32_t>(kDLCPU), ":0"),
       "; have its producer copy it there"});
}

// Converts `ndim` numbers of a DLPack tensor.
Dims ToDims(const int64_t* values, int ndim) { return Dims(values, values + ndim); }

absl::StatusOr<ForeignMemory> Describe(const Device& device, const DLTensor& from) {
  DT_RETURN_IF_ERROR(CheckDevice(device, from.device));
  ForeignMemory memory;
  DT_ASSIGN_OR_RETURN(memory.dtype, FromDlType(from.dtype));
  if (from.ndim < 0 || from.ndim > kMaxDims || (from.ndim > 0 && from.shape == nullptr)) {
    return InvalidArgument({"FromDlpack: the tensor says it has ", absl::StrCat(from.ndim),
                            " dimensions", from.shape == nullptr ? " and no sizes" : "", "; 0 to ",
                            absl::StrCat(kMaxDims), " are allowed"});
  }
  memory.shape = ToDims(from.shape, from.ndim);
  if (from.strides != nullptr) memory.strides = ToDims(from.strides, from.ndim);
  uintptr_t first;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(from.data), from.byte_offset, &first)) {
    return InvalidArgument({"FromDlpack: the byte offset ", absl::StrCat(from.byte_offset),
                            " leads beyond the last address"});
  }
  if (from.data != nullptr) memory.data = reinterpret_cast<void*>(first);
  return memory;
}

// Makes our tensor of theirs; `from` is released with the last reference.
template <typename Managed>
absl::StatusOr<Tensor> Import(Device& device, std::shared_ptr<Managed> from, bool read_only) {
  DT_ASSIGN_OR_RETURN(ForeignMemory memory, Describe(device, from->dl_tensor));
  memory.read_only = read_only;
  memory.deleter = [from = std::move(from)]() mutable { from = nullptr; };
  return AdoptMemory(device, std::move(memory));
}

absl::Status Undefined(absl::string_view call) {
  return InvalidArgument({call, ": the tensor is undefined, or the handle null"});
}

// What the manager_ctx of an exported tensor points to.
template <typename Managed>
struct Exported {
  Managed managed = {};
  std::shared_ptr<const void> keeper;
  Dims shape, strides;
};

template <typename Managed>
void DeleteExported(Managed* managed) {
  delete static_cast<Exported<Managed>*>(managed->manager_ctx);
}

template <typename Managed>
absl::StatusOr<std::unique_ptr<Managed, CallDlpackDeleter>> Export(const Tensor& tensor) {
  if (!tensor.defined()) return Undefined("ToDlpack");
  Device& device = tensor.device();
  if (device.is_meta()) {
    return absl::FailedPreconditionError(
        "ToDlpack: tensors on the meta device have shapes but no values");
  }
  auto exported = std::make_unique<Exported<Managed>>();
  DT_ASSIGN_OR_RETURN(exported->keeper, tensor.Keep());
  DT_RETURN_IF_ERROR(device.Synchronize());
  exported->shape = tensor.shape();
  exported->strides = tensor.strides();
  const DLDeviceType type = device.kind() == Device::Kind::kCuda ? kDLCUDA : kDLCPU;
  exported->managed.dl_tensor = {.data = tensor.raw(),
                                 .device = {type, device.ordinal()},
                                 .ndim = tensor.ndim(),
                                 .dtype = ToDlType(tensor.dtype()),
                                 .shape = exported->shape.data(),
                                 .strides = exported->strides.data(),
                                 .byte_offset = 0};
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = &DeleteExported<Managed>;
  return std::unique_ptr<Managed, CallDlpackDeleter>(&exported.release()->managed);
}

}  // namespace

void CallDlpackDeleter::operator()(DLManagedTensorVersioned* managed) const {
  if (managed->deleter != nullptr) managed->deleter(managed);
}

void CallDlpackDeleter::operator()(DLManagedTensor* managed) const {
  if (managed->deleter != nullptr) managed->deleter(managed);
}

absl::StatusOr<Tensor> FromDlpack(Device& device, DlpackTensor from) {
  if (from == nullptr) return Undefined("FromDlpack");
  if (from->version.major != kMajor) {
    return InvalidArgument({"FromDlpack: the tensor is of DLPack ",
                            absl::StrCat(from->version.major, ".", from->version.minor),
                            "; ask its producer for 1.x, or for one without a version"});
  }
  const bool read_only = (from->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
  return Import(device, std::shared_ptr<DLManagedTensorVersioned>(std::move(from)), read_only);
}

absl::StatusOr<Tensor> FromDlpack(Device& device, UnversionedDlpackTensor from) {
  if (from == nullptr) return Undefined("FromDlpack");
  return Import(device, std::shared_ptr<DLManagedTensor>(std::move(from)), /*read_only=*/false);
}

absl::StatusOr<DlpackTensor> ToDlpack(const Tensor& tensor) {
  DT_ASSIGN_OR_RETURN(DlpackTensor managed, Export<DLManagedTensorVersioned>(tensor));
  managed->version = {kMajor, kMinor};
  return managed;
}

absl::StatusOr<UnversionedDlpackTensor> ToUnversionedDlpack(const Tensor& tensor) {
  return Export<DLManagedTensor>(tensor);
}

}  // namespace dtensor
