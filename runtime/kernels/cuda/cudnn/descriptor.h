// A descriptor of cuDNN's graph API: an object of a kind, with attributes, which is finalized and
// then used by others.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_

#include <cudnn.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtensor::kernels::cuda {

// "<call>: <cuDNN's words>": kUnimplemented for what cuDNN does not support, kResourceExhausted
// where memory ran out, else kInternal.
absl::Status ToStatus(cudnnStatus_t status, const char* call);

class Descriptor {
 public:
  static absl::StatusOr<Descriptor> Make(cudnnBackendDescriptorType_t type);
  Descriptor() = default;
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Descriptor() {
    if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
  }

  cudnnBackendDescriptor_t get() const { return raw_; }

  // One value, or several, of an attribute's type.
  template <typename T>
  absl::Status Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   absl::Span<const T> values) {
    return SetRaw(name, type, static_cast<int64_t>(values.size()), values.data());
  }
  template <typename T>
  absl::Status Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   const T& value) {
    return SetRaw(name, type, 1, &value);
  }
  // A finalized descriptor, which must live on.
  absl::Status Set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.raw_);
  }
  absl::Status Finalize();

  // Reads up to values.size() values; returns how many there are.
  template <typename T>
  absl::StatusOr<int64_t> Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                              absl::Span<T> values) const {
    return GetRaw(name, type, static_cast<int64_t>(values.size()), values.data());
  }

 private:
  explicit Descriptor(cudnnBackendDescriptor_t raw) : raw_(raw) {}
  absl::Status SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                      int64_t count, const void* values);
  absl::StatusOr<int64_t> GetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 int64_t count, void* values) const;

  cudnnBackendDescriptor_t raw_ = nullptr;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_DESCRIPTOR_H_
