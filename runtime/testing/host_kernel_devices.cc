#include "absl/status/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "hwy/targets.h"

namespace dtensor::kernels {
namespace {

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<KernelTestParam> KernelTestParams() {
  return {{"Avx512", Device::Kind::kCpu, HWY_AVX3},
          {"Avx2", Device::Kind::kCpu, HWY_AVX2},
          {"Sse4", Device::Kind::kCpu, HWY_SSE4},
          {"Baseline", Device::Kind::kCpu, HWY_STATIC_TARGET},
          {"Deferred", Device::Kind::kDeferred, 0}};
}

absl::StatusOr<std::unique_ptr<Device>> MakeKernelTestDevice(const KernelTestParam& param) {
  if (param.target != 0) {
    if ((hwy::SupportedTargets() & param.target) == 0) {
      return absl::UnavailableError("not on this CPU");
    }
    UseTargets(param.target);
  }
  return param.kind == Device::Kind::kCpu ? MakeCpuDevice() : MakeDeferredDevice();
}

std::unique_ptr<Device> MakeTestDevice() { return MakeCpuDevice(); }
std::unique_ptr<Device> MakeLateTestDevice() { return MakeDeferredDevice(); }

void EndKernelTest() { UseTargets(0); }

}  // namespace dtensor::kernels
