// That each measure runs, over fakes and on a GPU, and says something: times are not looked at.
#include <mutex>
#include <set>
#include <string>

#include "dtensor/bench/gpu/figure.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::bench {
namespace {

using ::testing::IsSupersetOf;

class GpuBenchmarkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!MakeCudaDevice(0).ok()) GTEST_SKIP() << "there is no GPU";
  }
  Report Reporter() {
    return [this](const Figure& figure) {
      const std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_GT(figure.value, 0) << figure.name;
      EXPECT_EQ(figure.limit.empty(), figure.share == 0) << figure.name;
      EXPECT_TRUE(names_.insert(figure.name).second) << figure.name;
      remarks_ += figure.remarks;
    };
  }
  std::mutex mutex_;
  std::set<std::string> names_;
  std::string remarks_;
};

TEST_F(GpuBenchmarkTest, OneGpu) {
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0));
  DT_ASSERT_OK(MeasureOneGpu(*device, {.tiny = true}, Reporter()));
  EXPECT_THAT(names_, IsSupersetOf({"memory/copy", "memory/adamw", "product/bf16/32",
                                    "attention/fwd/64/16/causal/cudnn",
                                    "attention/bwd/64/16/causal/portable",
                                    "attention/fwd/64/16/striped/portable",
                                    "attention/decode/64/128", "host/operator/add"}));
}

TEST_F(GpuBenchmarkTest, Ranks) {
  DT_ASSERT_OK(MeasureRanks(2, {.tiny = true}, Reporter()));
  EXPECT_THAT(names_, IsSupersetOf({"exchange/all_gather/2/8KiB", "exchange/all_to_all/2/8KiB",
                                    "ring/fwd/2", "ring/bwd/2", "tensor_parallel/step/2"}));
  EXPECT_THAT(remarks_, testing::HasSubstr("bus "));
}

}  // namespace
}  // namespace dtensor::bench
