#include "dtensor/runtime/kernels/cuda/cudnn/descriptor.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::kernels::cuda {

absl::Status ToStatus(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudnnGetErrorString(status));
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) {
    return absl::UnimplementedError(message);
  }
  const bool no_memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  return no_memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

absl::StatusOr<Descriptor> Descriptor::Make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  DT_RETURN_IF_ERROR(
      ToStatus(cudnnBackendCreateDescriptor(type, &raw), "cudnnBackendCreateDescriptor"));
  return Descriptor(raw);
}

absl::Status Descriptor::Finalize() {
  return ToStatus(cudnnBackendFinalize(raw_), "cudnnBackendFinalize");
}

absl::Status Descriptor::SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                int64_t count, const void* values) {
  return ToStatus(cudnnBackendSetAttribute(raw_, name, type, count, values),
                  "cudnnBackendSetAttribute");
}

absl::StatusOr<int64_t> Descriptor::GetRaw(cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t count,
                                           void* values) const {
  int64_t found = 0;
  DT_RETURN_IF_ERROR(ToStatus(cudnnBackendGetAttribute(raw_, name, type, count, &found, values),
                              "cudnnBackendGetAttribute"));
  return found;
}

}  // namespace dtensor::kernels::cuda
