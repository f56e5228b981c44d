// That each measure runs, over fakes and on a GPU, and says something: times are not looked at.
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>

#include "dtensor/bench/gpu/figure.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cudnn.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::bench {
namespace {

using ::testing::HasSubstr;
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
      limits_.insert(figure.limit);
      remarks_ += figure.remarks;
    };
  }
  std::mutex mutex_;
  std::set<std::string> names_, limits_;
  std::string remarks_;
};

TEST_F(GpuBenchmarkTest, OneGpu) {
  DT_ASSERT_OK_AND_ASSIGN(const auto device, MakeCudaDevice(0));
  DT_ASSERT_OK(MeasureOneGpu(*device, {.tiny = true}, Reporter()));
  EXPECT_THAT(names_,
              IsSupersetOf(
                  {"memory/copy", "memory/adamw", "memory/rms_norm_grad", "memory/embedding",
                   "memory/cross_entropy", "product/bf16/32", "attention/bwd/64/16/causal/portable",
                   "attention/fwd/64/16/striped/portable", "attention/bwd/64/16/window/portable",
                   "attention/decode/64/128", "host/operator/add"}));
  // What cuDNN does not compute has no share of it.
  const bool by_cudnn = kernels::CudnnSteps(*device) > 0;
  EXPECT_EQ(names_.count("attention/fwd/64/16/causal/cudnn"), by_cudnn ? 1 : 0);
  EXPECT_EQ(limits_.count("cuDNN"), by_cudnn ? 1 : 0);
  EXPECT_THAT(remarks_, HasSubstr(by_cudnn ? "cuDNN 9" : "does not compute it here"));
  // Under Bazel that is known before: "none" refuses everything.
  if (const char* const said = std::getenv("DTENSOR_FAKE_CUDNN"); said != nullptr) {
    EXPECT_EQ(by_cudnn, std::string(said).empty());
  }
}

TEST_F(GpuBenchmarkTest, Ranks) {
  DT_ASSERT_OK(MeasureRanks(2, {.tiny = true}, Reporter()));
  EXPECT_THAT(names_, IsSupersetOf({"exchange/all_gather/2/8KiB", "exchange/all_to_all/2/8KiB",
                                    "ring/fwd/2", "ring/bwd/2", "tensor_parallel/step/2"}));
  EXPECT_THAT(remarks_, HasSubstr("bus "));
}

}  // namespace
}  // namespace dtensor::bench
