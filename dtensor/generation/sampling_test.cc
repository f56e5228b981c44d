#include "dtensor/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How often each token is drawn in 20,000 tries.
std::vector<double> Shares(const std::vector<float>& logits, SamplingOptions options) {
  constexpr int kTries = 20000;
  std::vector<double> shares(logits.size());
  for (uint32_t i = 0; i < kTries; ++i) {
    shares[SampleToken(logits, options, i % 3, i)] += 1;
  }
  for (double& share : shares) share /= kTries;
  return shares;
}

TEST(SampleToken, TakesTheLikeliestWhereNothingIsDrawn) {
  EXPECT_EQ(SampleToken({1, 3, 2, 3}, {}, 0, 0), 1);
  EXPECT_EQ(SampleToken({kNan, -kInfinity, -5, kNan}, {}, 0, 0), 2);
  EXPECT_EQ(SampleToken({kNan, kNan}, {.temperature = 1}, 0, 0), 0);
  EXPECT_EQ(SampleToken({0, kInfinity}, {}, 0, 0), 1);
}

TEST(SampleToken, ASmallTemperatureTakesTheLikeliest) {
  const SamplingOptions cold = {.temperature = 1e-320};
  EXPECT_EQ(SampleToken({1, 3, 2}, cold, 0, 0), 1);
  EXPECT_EQ(SampleToken({-3, -1, -2}, cold, 0, 0), 1);
  EXPECT_EQ(SampleToken({0, kInfinity, -kInfinity}, cold, 0, 0), 1);
}

TEST(SampleToken, DrawsByProbability) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(5.f), -kInfinity, kNan};
  const std::vector<double> shares = Shares(logits, {.temperature = 1, .seed = 1});
  EXPECT_NEAR(shares[0], 1.0 / 8, 0.015);
  EXPECT_NEAR(shares[1], 2.0 / 8, 0.015);
  EXPECT_NEAR(shares[2], 5.0 / 8, 0.015);
  EXPECT_EQ(shares[3] + shares[4], 0);
  const std::vector<double> colder = Shares(logits, {.temperature = 0.5, .seed = 1});
  EXPECT_NEAR(colder[0], 1.0 / 30, 0.015);
  EXPECT_NEAR(colder[2], 25.0 / 30, 0.015);
}

TEST(SampleToken, LeavesOutTheUnlikely) {
  const std::vector<float> logits = {0, std::log(2.f), std::log(5.f), std::log(2.f)};
  const std::vector<double> top1 = Shares(logits, {.temperature = 1, .top_k = 1});
  EXPECT_EQ(top1[2], 1);
  const std::vector<double> top2 = Shares(logits, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(top2[0], 0) << "those that tie with the second stay";
  EXPECT_NEAR(top2[1], 2.0 / 9, 0.015);
  EXPECT_EQ(Shares(logits, {.temperature = 1, .top_p = 0.4})[2], 1);  // 5/10 is enough
  const std::vector<double> most = Shares(logits, {.temperature = 1, .top_p = 0.9});
  EXPECT_EQ(most[0], 0);
  EXPECT_NEAR(most[2], 5.0 / 9, 0.015);
  EXPECT_GT(Shares(logits, {.temperature = 1, .top_p = 0.95})[0], 0);
  const std::vector<double> of_two = Shares(logits, {.temperature = 1, .top_k = 3, .top_p = 0.5});
  EXPECT_EQ(of_two[2], 1) << "probabilities are those after top_k: 5/9";
}

// Each token has a number of its own, whichever others were passed over before it.
TEST(SampleToken, AddsToEachTokenItsOwnNoise) {
  for (const int words : {1, 2, 3, 4, 5, 7, 8, 9, 50}) {
    for (uint32_t position = 0; position < 200; ++position) {
      const uint32_t row = position % 5;
      const SamplingOptions options{
          .temperature = 0.7, .top_k = position % 2 * 6, .seed = 1ull << 40};
      std::vector<float> logits;
      for (int i = 0; i < words; ++i) {
        logits.push_back(static_cast<float>(std::sin(i * 7.0 + position)));
      }
      std::vector<float> sorted = logits;
      std::sort(sorted.begin(), sorted.end(), std::greater<float>());
      const bool cuts = options.top_k > 0 && options.top_k < words;
      int64_t want = -1;
      double most = 0;
      for (uint32_t i = 0; i < static_cast<uint32_t>(words); ++i) {
        if (cuts && logits[i] < sorted[options.top_k - 1]) continue;
        const uint32_t word = Philox({i / 4, 0, position, row}, {0, 1u << 8})[i % 4];
        const double u = ((word >> 8) + 0.5) / (1 << 24);
        const double score = logits[i] / 0.7 - std::log(-std::log(u));
        if (want >= 0 && score <= most) continue;
        want = i;
        most = score;
      }
      ASSERT_EQ(SampleToken(logits, options, row, position), want) << words << " " << position;
    }
  }
}

TEST(SampleToken, DependsOnSeedRowAndPosition) {
  const std::vector<float> logits(100, 0);
  const SamplingOptions options{.temperature = 1, .seed = 7};
  const int64_t token = SampleToken(logits, options, 2, 9);
  EXPECT_EQ(SampleToken(logits, options, 2, 9), token);
  EXPECT_NE(SampleToken(logits, {.temperature = 1, .seed = 8}, 2, 9), token);
  EXPECT_NE(SampleToken(logits, options, 1, 9), token);
  EXPECT_NE(SampleToken(logits, options, 2, 10), token);
}

TEST(SampleTokens, IsTheSameWhereverLogitsLie) {
  std::vector<float> logits;
  for (int i = 0; i < 33; ++i) logits.push_back(static_cast<float>(std::sin(i * 7)));
  logits[4] = logits[15] = kNan;  // ArgMax would take it
  logits[14] = -kInfinity;
  for (const SamplingOptions& options :
       {SamplingOptions(), SamplingOptions{.temperature = 1.5, .top_k = 9, .seed = 4}}) {
    std::vector<int64_t> wanted;
    for (int64_t r = 0; r < 3; ++r) {
      wanted.push_back(SampleToken(absl::MakeConstSpan(logits).subspan(r * 11, 11), options,
                                   static_cast<uint32_t>(r), static_cast<uint32_t>(5 + r)));
    }
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
      for (const auto& placements : std::vector<std::vector<Placement>>{
               {Replicate(), Replicate()}, {Shard(0), Shard(2)}, {Shard(2), Shard(2)}}) {
        DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                            Distribute<float>(context, mesh, placements, {3, 1, 11}, logits));
        DT_ASSIGN_OR_RETURN(const std::vector<int64_t> tokens, SampleTokens(x, options, {5, 6, 7}));
        EXPECT_EQ(tokens, wanted);
        EXPECT_THAT(SampleTokens(x, options, {5, 6}), Refuses(HasSubstr("2 positions")));
        EXPECT_THAT(SampleTokens(x, options, {5, -6, 7}), Refuses(HasSubstr("no position is -6")));
      }
      return absl::OkStatus();
    }));
  }
}

TEST(SamplingOptions, AreChecked) {
  EXPECT_THAT(SamplingOptions({.temperature = -1}).Validate(), Refuses(HasSubstr("temperature")));
  EXPECT_THAT(SamplingOptions({.temperature = kNan}).Validate(), Refuses(HasSubstr("temperature")));
  EXPECT_THAT(SamplingOptions({.top_k = -1}).Validate(), Refuses(HasSubstr("top_k")));
  EXPECT_THAT(SamplingOptions({.top_p = 0}).Validate(), Refuses(HasSubstr("top_p")));
  EXPECT_THAT(SamplingOptions({.top_p = 1.5}).Validate(), Refuses(HasSubstr("top_p")));
}

}  // namespace
}  // namespace dtensor
