// Rings of many ranks: how far their results are from wider ones, and that repeated runs are equal.
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/testing/ring_reference.h"
#include "dtensor/testing/ring_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr double kScale = 0.35;

RingProblem Problem(int cp, ShardOrder order, const AttentionMask& mask, DType dtype,
                    int64_t q_length = 256, int64_t kv_length = 256) {
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("cp=", cp)).value();
  return {.q = Layout::FromPlacements(mesh, {Shard(0, order)}, {q_length}).value(),
          .kv = Layout::FromPlacements(mesh, {Shard(0, order)}, {kv_length}).value(),
          .q_length = q_length,
          .kv_length = kv_length,
          .axes = {0},
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 8,
          .dtype = dtype,
          .mask = mask};
}

AttentionDoubles ResultsOf(const RingProblem& problem, const AttentionInputs& inputs,
                           const RunOptions& options = {}) {
  auto results =
      RunRanksOfRing(RingSchedule::Create(problem).value(), {.scale = kScale}, inputs, options);
  DT_EXPECT_OK(results.status());
  return results.ok() ? *std::move(results) : AttentionDoubles();
}

template <typename T>
void ExpectWithin(const AttentionDoubles& results, const AttentionValues<T>& expected,
                  double limit) {
  const auto errors = RelativeErrors(results, expected);
  for (size_t i = 0; i < errors.size(); ++i) EXPECT_LE(errors[i], limit) << kAttentionValues[i];
}

// Of every kind: all keys, a triangle, a band, and documents that end anywhere.
std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(40).value(),
          AttentionMask::Documents({0, 21, 100}).value()};
}

TEST(RingAccuracyTest, WideTypesAreAsGoodAsOneRank) {
  for (const AttentionMask& mask : Masks()) {
    for (const ShardOrder& order : {ShardOrder::Zigzag(), ShardOrder::Contiguous()}) {
      for (const int cp : {8, 16, 32}) {
        if (!SuiteHasRanks(cp)) continue;
        for (const auto& [dtype, limit] : {std::pair(DType::kF32, 3e-6), {DType::kF64, 1e-13}}) {
          SCOPED_TRACE(absl::StrCat(cp, " ranks, ", mask.ToString(), " ", ToString(dtype)));
          const RingProblem problem = Problem(cp, order, mask, dtype);
          const AttentionInputs inputs = RandomInputs(problem);
          const AttentionReference expected =
              ReferenceAttention(ReferenceOf(problem, kScale), inputs);
          ExpectWithin(ResultsOf(problem, inputs), expected, limit);
        }
      }
    }
  }
}

// Results are rounded once, whatever the number of ranks: sums travel wide. lse is f32.
TEST(RingAccuracyTest, NarrowTypesAreRoundedOnce) {
  for (const AttentionMask& mask : Masks()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const RingProblem one = Problem(1, ShardOrder::Zigzag(), mask, dtype);
      const AttentionInputs inputs = RandomInputs(one);
      const AttentionReference expected = ReferenceAttention(ReferenceOf(one, kScale), inputs);
      const auto of_one = RelativeErrors(ResultsOf(one, inputs), expected);
      for (const int cp : {8, 16, 32}) {
        if (!SuiteHasRanks(cp)) continue;
        SCOPED_TRACE(absl::StrCat(cp, " ranks, ", mask.ToString(), " ", ToString(dtype)));
        const AttentionDoubles results =
            ResultsOf(Problem(cp, ShardOrder::Zigzag(), mask, dtype), inputs);
        const auto errors = RelativeErrors(results, expected);
        for (size_t i = 0; i < errors.size(); ++i) {
          EXPECT_LE(errors[i], 1.4 * of_one[i]) << kAttentionValues[i];
          EXPECT_GT(of_one[i], 0) << kAttentionValues[i];
        }
      }
    }
  }
}

// Any number of ranks drops what the reference drops.
TEST(RingAccuracyTest, DropoutIsThatOfOneRank) {
  const RingOptions options = {.scale = kScale,
                               .dropout = {.rate = 0.3,
                                           .seed = 11,
                                           .batches = IndexSet::Interval(4, 5),
                                           .heads = IndexSet::Interval(8, 12)}};
  for (const AttentionMask& mask : Masks()) {
    for (const auto& [dtype, limit] : {std::pair(DType::kF32, 3e-6), {DType::kF64, 1e-13}}) {
      const RingProblem one = Problem(1, ShardOrder::Contiguous(), mask, dtype);
      const AttentionInputs inputs = RandomInputs(one);
      ReferenceProblem dropped = ReferenceOf(one, kScale);
      dropped.dropout = options.dropout;
      const AttentionReference expected = ReferenceAttention(dropped, inputs);
      EXPECT_GT(RelativeRms(ResultsOf(one, inputs).o, expected.o), 0.1);
      for (const ShardOrder& order :
           {ShardOrder::Zigzag(), ShardOrder::Contiguous(), ShardOrder::Block(1)}) {
        for (const int cp : {1, 2, 3, 8}) {
          if (!SuiteHasRanks(cp)) continue;
          SCOPED_TRACE(absl::StrCat(cp, " ranks, ", mask.ToString(), " ", ToString(dtype)));
          const RingSchedule schedule =
              RingSchedule::Create(Problem(cp, order, mask, dtype)).value();
          DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles results,
                                  RunRanksOfRing(schedule, options, inputs));
          ExpectWithin(results, expected, limit);
        }
      }
    }
  }
}

TEST(RingAccuracyTest, RefusesDropoutThatIsNone) {
  const RingProblem problem =
      Problem(2, ShardOrder::Zigzag(), AttentionMask::Causal(), DType::kF32);
  const IndexSet batches = IndexSet::Interval(0, 1), heads = IndexSet::Interval(0, 4);
  const std::pair<const char*, kernels::AttentionDropout> wrong[] = {
      {"a dropout rate of 1", {1, 0, batches, heads}},
      {"a dropout rate of -0.5", {-0.5, 0, batches, heads}},
      {"a dropout rate of nan", {std::nan(""), 0, batches, heads}},
      {"0 batch entries and 4 heads", {0.5, 0, IndexSet(), heads}},
      {"1 batch entries and 1 heads", {0.5, 0, batches, batches}}};
  for (const auto& [words, dropout] : wrong) {
    EXPECT_THAT(RunRanksOfRing(RingSchedule::Create(problem).value(), {.dropout = dropout},
                               RandomInputs(problem)),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr(words)));
  }
}

TEST(RingAccuracyTest, TheSameBitsWhateverTheDelays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const RingProblem problem =
        Problem(8, ShardOrder::Zigzag(), AttentionMask::Causal(), dtype, 128, 128);
    const AttentionInputs inputs = RandomInputs(problem);
    const AttentionDoubles first = ResultsOf(problem, inputs);
    EXPECT_EQ(ResultsOf(problem, inputs), first);
    for (const uint64_t seed : {1, 2, 3}) {
      EXPECT_EQ(ResultsOf(problem, inputs, {.seed = seed, .max_delay_us = 300}), first);
      EXPECT_EQ(ResultsOf(problem, inputs,
                          {.device = Device::Kind::kDeferred, .seed = seed, .max_delay_us = 100}),
                first);
    }
  }
}

// Queries behind the last key of a window see nothing: some rows of some ranks, all rows of others.
// And keys of documents that no query belongs to are seen by nobody.
TEST(RingAccuracyTest, WhatSeesNothingIsZero) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const int cp : {1, 4, 5}) {
      const RingProblem window =
          Problem(cp, ShardOrder::Contiguous(), AttentionMask::Window(3).value(), dtype, 60, 21);
      const AttentionDoubles seen = ResultsOf(window, RandomInputs(window));
      for (int64_t i = 0; i < 60; ++i) {
        const bool sees = i < 21 + 2;
        for (int64_t x = 0; x < 32; ++x) {
          EXPECT_EQ(seen.o[i * 32 + x] != 0, sees) << i;
          EXPECT_TRUE(sees ? std::isfinite(seen.dq[i * 32 + x]) : seen.dq[i * 32 + x] == 0) << i;
        }
        for (int64_t h = 0; h < 4; ++h) EXPECT_EQ(seen.lse[h * 60 + i] != -kInf, sees) << i;
      }
      const RingProblem documents = Problem(
          cp, ShardOrder::Contiguous(), AttentionMask::Documents({0, 30}).value(), dtype, 21, 60);
      const AttentionDoubles unseen = ResultsOf(documents, RandomInputs(documents));
      for (int64_t j = 0; j < 60; ++j) {
        for (int64_t x = 0; x < 16; ++x) {
          EXPECT_EQ(unseen.dv[j * 16 + x] != 0, j < 21) << j;
          EXPECT_EQ(unseen.dk[j * 16 + x] != 0, j < 21) << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
