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
  absl::Status DoMultiply(const Product&) override { return absl::OkStatus(); }
  Event DoRecord() override { return Event(); }
  absl::Status DoWait(const Event&) override { return absl::OkStatus(); }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }
};

}  // namespace

std::unique_ptr<Device> MakeMetaDevice() { return std::make_unique<MetaDevice>(); }

}  // namespace dtensor
