// The devices that tests of kernels have on GPUs; require_gpu_test.sh runs this where there are
// fewer GPUs than were promised.
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

TEST(CudaKernelDevicesTest, AreGpus) {
  for (const KernelTestParam& param : KernelTestParams()) {
    DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeKernelTestDevice(param));
    EXPECT_EQ(device->kind(), Device::Kind::kCuda);
  }
}

TEST(CudaKernelDevicesTest, AnotherGpuIsBesideThem) {
  const auto other = MakeCudaDevice(1);
  if (!other.ok()) {
    RecordProperty("needs_gpus", 2);
    GTEST_SKIP() << other.status();
  }
  EXPECT_EQ((*other)->ordinal(), 1);
}

}  // namespace
}  // namespace dtensor::kernels
