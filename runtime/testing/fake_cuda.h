// A device that is a GPU by its kind and ordinal alone: it has no memory and does nothing. For what
// is decided by the kind.
#ifndef DTENSOR_RUNTIME_TESTING_FAKE_CUDA_H_
#define DTENSOR_RUNTIME_TESTING_FAKE_CUDA_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

class FakeCuda final : public Device {
 public:
  explicit FakeCuda(int ordinal = 0) : Device(Kind::kCuda, ordinal) {}

 private:
  absl::StatusOr<void*> DoAllocate(int64_t) override { return nullptr; }
  void DoFree(void*, int64_t) override {}
  absl::Status LaunchHost(const char*, std::function<absl::Status()>) override {
    return absl::InternalError("host code was launched");
  }
  absl::Status DoCopy(void*, const void*, int64_t) override { return absl::OkStatus(); }
  absl::Status DoFill(void*, uint8_t, int64_t) override { return absl::OkStatus(); }
  absl::Status DoGemm(const GemmProblem&) override { return absl::OkStatus(); }
  DeviceEvent DoRecord() override { return DeviceEvent(); }
  absl::Status DoWait(const DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_FAKE_CUDA_H_
