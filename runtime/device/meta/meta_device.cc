#include "dtensor/runtime/device/meta/meta_device.h"

#include <memory>

#include "dtensor/runtime/device/device.h"

namespace dtensor {
namespace {

// Counts memory (the base class does), and does nothing.
class MetaDevice final : public Device {
 public:
  MetaDevice() : Device(Kind::kMeta) {}

 private:
  absl::StatusOr<void*> DoAllocate(int64_t) override { return nullptr; }
  void DoFree(void*, int64_t) override {}
  absl::Status LaunchHost(const char*, std::function<absl::Status()>) override {
    return absl::OkStatus();
  }
  absl::Status DoCopy(void*, const void*, int64_t) override { return absl::OkStatus(); }
  absl::Status DoFill(void*, uint8_t, int64_t) override { return absl::OkStatus(); }
  absl::Status DoGemm(const GemmProblem&) override { return absl::OkStatus(); }
  DeviceEvent DoRecord() override { return DeviceEvent(); }
  absl::Status DoWait(const DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }
};

}  // namespace

std::unique_ptr<Device> MakeMetaDevice() { return std::make_unique<MetaDevice>(); }

}  // namespace dtensor
