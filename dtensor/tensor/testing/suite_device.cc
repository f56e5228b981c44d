#include "dtensor/tensor/testing/suite_device.h"

#include "dtensor/runtime/device/cuda/gpus.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

class NeedsSuiteDevice final : public testing::Environment {
 public:
  void SetUp() override {
    if (SuiteDevice() != Device::Kind::kCuda) return;
    if (const auto gpus = CountGpus(); !gpus.ok()) GTEST_SKIP() << gpus.status();
  }
};

// GoogleTest owns it.
[[maybe_unused]] testing::Environment* const needs_suite_device =
    testing::AddGlobalTestEnvironment(new NeedsSuiteDevice);

}  // namespace
}  // namespace dtensor
