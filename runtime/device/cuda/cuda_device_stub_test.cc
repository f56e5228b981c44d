#include <string>

#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

TEST(CudaDeviceStubTest, SaysWhatToDo) {
  EXPECT_THAT(MakeCudaDevice(0), StatusIs(absl::StatusCode::kUnavailable,
                                          testing::HasSubstr("build it with --config=cuda")));
}

}  // namespace
}  // namespace dtensor
