#include <cstdlib>
#include <memory>
#include <vector>

#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/cuda/limit_cuda_capability.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

// Skips every test where there is no GPU; tools/cuda/require_gpu.cc makes a failure of that.
class NeedsGpu final : public testing::Environment {
 public:
  void SetUp() override {
    const auto device = MakeCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
  }
};

// GoogleTest owns it.
[[maybe_unused]] testing::Environment* const needs_gpu =
    testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace

std::vector<KernelTestParam> KernelTestParams() { return {{"Cuda", Device::Kind::kCuda, 0}}; }

// With the kernels of GPUs of $DTENSOR_TEST_CAPABILITY, if it is set.
absl::StatusOr<std::unique_ptr<Device>> MakeKernelTestDevice(const KernelTestParam&) {
  auto device = MakeCudaDevice(0);
  const char* const capability = std::getenv("DTENSOR_TEST_CAPABILITY");
  if (device.ok() && capability != nullptr) LimitCudaCapability(**device, std::atoi(capability));
  return device;
}

std::unique_ptr<Device> MakeTestDevice() { return *MakeKernelTestDevice({}); }
std::unique_ptr<Device> MakeLateTestDevice() { return MakeTestDevice(); }

void EndKernelTest() {}

}  // namespace dtensor::kernels
