// Law 5: the same run gives the same bits twice, also with random delays injected into the
// communicator, and on the device that runs every launch later.
#include <string>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tests/training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

RunOptions Delays(Device::Kind device, uint64_t seed) {
  RunOptions options;
  options.device = device;
  options.seed = seed;
  options.max_delay_us = device == Device::Kind::kDeferred ? 10 : 100;
  return options;
}

// Meshes and types that differ in what they communicate.
std::vector<TrainingRun> Runs() {
  return {{.mesh = "dp=2,tp=2"},
          {.mesh = "dp=2,tp=2", .sequence_parallel = false},
          {.mesh = "dp=2,tp=2", .dtype = DType::kBF16, .first_values = DType::kBF16},
          {.mesh = "tp=3", .allow_uneven = true},
          {.mesh = "cp=4"},
          {.mesh = "cp=2,tp=2", .dtype = DType::kBF16, .first_values = DType::kBF16},
          {.mesh = "cp=3", .allow_uneven = true}};
}

void ExpectSameBits(const Device::Kind device, absl::Span<const uint64_t> seeds) {
  for (TrainingRun run : Runs()) {
    DT_ASSERT_OK_AND_ASSIGN(const Trained undelayed, Train(run));
    EXPECT_LT(undelayed.losses.back(), undelayed.losses.front());
    for (const uint64_t seed : seeds) {
      run.options = Delays(device, seed);
      DT_ASSERT_OK_AND_ASSIGN(const Trained again, Train(run));
      EXPECT_TRUE(again == undelayed) << run.mesh << " " << ToString(run.dtype) << " seed " << seed;
    }
  }
}

TEST(Determinism, TrainingTwiceGivesTheSameBits) { ExpectSameBits(Device::Kind::kCpu, {1, 2, 3}); }

TEST(Determinism, TrainingOnADeviceThatRunsLaterGivesTheSameBits) {
  ExpectSameBits(Device::Kind::kDeferred, {1, 2});
}

// Without this the tests above might compare nothing.
TEST(Determinism, OtherFirstValuesGiveOtherBits) {
  DT_ASSERT_OK_AND_ASSIGN(const Trained a, Train({.mesh = "tp=2"}));
  DT_ASSERT_OK_AND_ASSIGN(const Trained b, Train({.mesh = "tp=2", .seed = 4}));
  EXPECT_FALSE(a.losses == b.losses);
  EXPECT_FALSE(a.first_gradients == b.first_gradients);
  EXPECT_FALSE(a.parameters == b.parameters);
}

// The terms of four ranks, whose sum depends on the order in which they are added.
constexpr float kTerms[] = {1e8f, 3.0f, -1e8f, 5.0f};

absl::StatusOr<float> SumOfTerms(const std::string& target, const RunOptions& options) {
  float sum = 0;
  DT_RETURN_IF_ERROR(RunRanks(
      4,
      [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=4"));
        DT_ASSIGN_OR_RETURN(const Layout partial, Layout::Parse(mesh, "[] P(sum: tp)"));
        DT_ASSIGN_OR_RETURN(const Layout to, Layout::Parse(mesh, target));
        const std::vector<float> term(5, kTerms[context.rank()]);
        DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), term, {5}));
        DT_ASSIGN_OR_RETURN(const DistributedTensor x, FromLocal(context, partial, {5}, local));
        DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute(to));
        DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(y));
        for (const float value : values) EXPECT_EQ(value, values[0]);
        if (context.rank() == 0) sum = values[0];
        return absl::OkStatus();
      },
      options));
  return sum;
}

TEST(Determinism, WhoeverComesLateSumsKeepTheirOrder) {
  const float ascending = ((kTerms[0] + kTerms[1]) + kTerms[2]) + kTerms[3];
  const float descending = ((kTerms[3] + kTerms[2]) + kTerms[1]) + kTerms[0];
  const float in_pairs = (kTerms[0] + kTerms[1]) + (kTerms[2] + kTerms[3]);
  ASSERT_NE(ascending, descending);
  ASSERT_NE(ascending, in_pairs);
  for (const std::string target : {"[]", "[tp]"}) {
    for (const Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        EXPECT_THAT(SumOfTerms(target, Delays(device, seed)), IsOkAndHolds(ascending))
            << target << " " << ToString(device) << " seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
