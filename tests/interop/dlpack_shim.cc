// Local tensors behind C functions, for Python's ctypes: dlpack_shim.py. A handle is freed once. A
// null handle means an error; shim_error() returns its text until the next error.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/print.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/dlpack.h"

namespace dtensor {
namespace {

Device& TheDevice() {
  static Device& device = *MakeCpuDevice().release();  // outlives what Python frees at its end
  return device;
}

std::string& Text() {
  static std::string& text = *new std::string;
  return text;
}

template <typename T>
T ValueOrText(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  Text() = value.status().ToString();
  return T();
}

Tensor* Handle(absl::StatusOr<Tensor> tensor) {
  Tensor value = ValueOrText(std::move(tensor));
  return value.defined() ? new Tensor(std::move(value)) : nullptr;
}

}  // namespace
}  // namespace dtensor

using dtensor::Tensor;

extern "C" {

const char* shim_error() { return dtensor::Text().c_str(); }
int64_t shim_tensors() { return dtensor::TheDevice().tensors(); }

// Consumes `managed`.
Tensor* shim_import(void* managed, bool versioned) {
  dtensor::Device& device = dtensor::TheDevice();
  if (versioned) {
    auto* from = static_cast<DLManagedTensorVersioned*>(managed);
    return dtensor::Handle(dtensor::FromDlpack(device, dtensor::DlpackTensor(from)));
  }
  auto* from = static_cast<DLManagedTensor*>(managed);
  return dtensor::Handle(dtensor::FromDlpack(device, dtensor::UnversionedDlpackTensor(from)));
}

void* shim_export(const Tensor* tensor, bool versioned) {
  if (versioned) return dtensor::ValueOrText(dtensor::ToDlpack(*tensor)).release();
  return dtensor::ValueOrText(dtensor::ToUnversionedDlpack(*tensor)).release();
}

void shim_delete(void* managed, bool versioned) {
  const dtensor::CallDlpackDeleter call;
  versioned ? call(static_cast<DLManagedTensorVersioned*>(managed))
            : call(static_cast<DLManagedTensor*>(managed));
}

Tensor* shim_transpose(const Tensor* tensor, int dim0, int dim1) {
  return new Tensor(tensor->Transpose(dim0, dim1));
}
bool shim_before_write(const Tensor* tensor) { return tensor->BeforeWrite().ok(); }
const void* shim_data(const Tensor* tensor) { return tensor->raw(); }
const char* shim_print(const Tensor* tensor) {
  dtensor::Text() = dtensor::ToString(*tensor);
  return dtensor::Text().c_str();
}
void shim_free(Tensor* tensor) { delete tensor; }

}  // extern "C"
