// Tests on a GPU: each has a device of its own, and is skipped where there is none.
#ifndef DTENSOR_RUNTIME_TESTING_CUDA_FIXTURE_H_
#define DTENSOR_RUNTIME_TESTING_CUDA_FIXTURE_H_

#include <memory>
#include <utility>

#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/device.h"
#include "gtest/gtest.h"

namespace dtensor {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = MakeCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status();
    device_ = *std::move(device);
  }
  std::unique_ptr<Device> device_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_CUDA_FIXTURE_H_
