#include "dtensor/runtime/device/meta/meta_device.h"

#include <memory>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/work.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/gemm.h"

namespace dtensor {
namespace {

// A matrix that is shared by several products of a batch is read once.
KernelWork WorkOf(const GemmProblem& gemm) {
  const auto batch = static_cast<double>(gemm.batch), m = static_cast<double>(gemm.m),
             n = static_cast<double>(gemm.n), k = static_cast<double>(gemm.k);
  const auto matrices = [&](const GemmMatrix& x) { return x.batch_stride == 0 ? 1 : batch; };
  const auto size = static_cast<double>(SizeOf(gemm.dtype)),
             out_size = static_cast<double>(SizeOf(gemm.out_dtype));
  return {.dtype = gemm.dtype,
          .gemm_flops = 2 * batch * m * n * k,
          .bytes = size * (matrices(gemm.a) * m * k + matrices(gemm.b) * k * n) +
                   out_size * batch * m * n * (gemm.accumulate ? 2 : 1)};
}

// Counts memory (the base class does) and work.
class MetaDevice final : public Device {
 public:
  explicit MetaDevice(const MachineRates& rates) : Device(Kind::kMeta), clock_(rates) {}

  SimulatedClock& clock() { return clock_; }

 private:
  absl::StatusOr<void*> DoAllocate(int64_t) override { return nullptr; }
  void DoFree(void*, int64_t) override {}
  absl::Status LaunchHost(const char*, std::function<absl::Status()>) override {
    return absl::OkStatus();
  }
  absl::Status DoCopy(void*, const void*, int64_t bytes) override {
    clock_.Compute({.bytes = 2.0 * static_cast<double>(bytes)});
    return absl::OkStatus();
  }
  absl::Status DoFill(void*, uint8_t, int64_t bytes) override {
    clock_.Compute({.bytes = static_cast<double>(bytes)});
    return absl::OkStatus();
  }
  absl::Status DoGemm(const GemmProblem& gemm) override {
    clock_.Compute(WorkOf(gemm));
    return absl::OkStatus();
  }
  DeviceEvent DoRecord() override { return DeviceEvent(); }
  absl::Status DoWait(const DeviceEvent&) override { return absl::OkStatus(); }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }

  SimulatedClock clock_;
};

}  // namespace

std::unique_ptr<Device> MakeMetaDevice(const MachineRates& rates) {
  return std::make_unique<MetaDevice>(rates);
}

SimulatedClock* ClockOf(Device& device) {
  return device.is_meta() ? &static_cast<MetaDevice&>(device).clock() : nullptr;
}

}  // namespace dtensor
