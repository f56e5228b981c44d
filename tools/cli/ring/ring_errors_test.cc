// What is reported about right results, and about wrong ones.
#include "dtensor/tools/cli/ring/ring_errors.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::cli {
namespace {

RingProblem Problem(const std::string& mask, DType dtype, int64_t seq = 21) {
  RingProblem problem;
  problem.mask = AttentionMask::Parse(mask).value();
  problem.dtype = dtype;
  problem.batch = 2, problem.heads = 4, problem.kv_heads = 2, problem.head_dim = 5;
  problem.q_length = problem.kv_length = seq;
  return problem;
}

// What is reported about the kernels on one rank.
std::array<RingError, 5> ErrorsOfOneRank(const RingProblem& problem) {
  const auto device = MakeCpuDevice();
  const RingInputs inputs = RandomInputs(*device, problem).value();
  const RingOutputs kernels = RunOnOneRank(*device, problem, inputs, problem.dtype).value();
  return Compare(*device, problem, inputs, kernels).value();
}

TEST(RingErrorsTest, TellsHowFarItIs) {
  const auto device = MakeCpuDevice();
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const RingProblem problem = Problem("causal", dtype);
    DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
    DT_ASSERT_OK_AND_ASSIGN(const RingOutputs outputs,
                            RunOnOneRank(*device, problem, inputs, dtype));
    std::vector<double> told;
    DT_EXPECT_OK(
        Compare(*device, problem, inputs, outputs, [&](double done) { told.push_back(done); }));
    // On f64 the reference alone is at work, and other threads may have done all of it.
    ASSERT_GE(told.size(), dtype == DType::kF64 ? 1 : problem.kv_heads) << ToString(dtype);
    EXPECT_GT(told.front(), 0);
    EXPECT_TRUE(dtype == DType::kF64 || told.front() < 1) << told.front();
    EXPECT_TRUE(std::ranges::is_sorted(told));
    EXPECT_EQ(told.back(), 1);
  }
}

TEST(RingErrorsTest, TheRingsShareFallsAsTheComparisonTakesLonger) {
  const double narrow = RingShare(Problem("full", DType::kF32), 2);
  EXPECT_LT(narrow, 1);
  EXPECT_LT(RingShare(Problem("full", DType::kBF16), 2), narrow);
  EXPECT_LT(RingShare(Problem("full", DType::kF64), 2), 0.1);
  EXPECT_GT(RingShare(Problem("full", DType::kF64), 0), 0);
}

TEST(RingErrorsTest, AWiderTypeSeesWhatF64Rounds) {
  for (const char* mask : {"full", "causal", "window:4", "prefix:5", "documents:0,3,14"}) {
    for (const RingError& error : ErrorsOfOneRank(Problem(mask, DType::kF64))) {
      EXPECT_LT(error.error, 1e-14) << mask << " " << error.name;
      EXPECT_GT(error.error, 0) << mask << " " << error.name;
    }
  }
}

// More queries than keys, which the command does not offer.
TEST(RingErrorsTest, QueriesThatSeeNothing) {
  RingProblem problem = Problem("window:2", DType::kF64, 4);
  problem.q_length = 7;
  for (const RingError& error : ErrorsOfOneRank(problem)) {
    EXPECT_LT(error.error, 1e-14) << error.name;
  }
}

// Gradients of queries that see one key are nothing but rounding, and are measured by their terms.
TEST(RingErrorsTest, WhatCancelsIsMeasuredByItsTerms) {
  for (const RingError& error : ErrorsOfOneRank(Problem("window:1", DType::kF32))) {
    EXPECT_TRUE(error.ok()) << error.name << " " << error.error;
  }
}

// Every result of a run by itself, made wrong by so much.
void ExpectCaught(DType dtype, double relative) {
  const auto device = MakeCpuDevice();
  const RingProblem problem = Problem("causal", dtype);
  DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
  for (int wrong = -1; wrong < 5; ++wrong) {
    DT_ASSERT_OK_AND_ASSIGN(const RingOutputs outputs,
                            RunOnOneRank(*device, problem, inputs, dtype));
    if (wrong >= 0) {
      const auto results = outputs.Named();
      const Tensor& tensor = results[wrong].second;
      VisitDType(tensor.dtype(), [&](auto zero) {
        using T = decltype(zero);
        for (int64_t i = 0; i < tensor.numel(); ++i) {
          T& x = tensor.data<T>()[i];
          if constexpr (std::is_same_v<T, double>) {
            x *= 1 + relative;
          } else if constexpr (!std::is_integral_v<T>) {
            x = T(static_cast<float>(x) * static_cast<float>(1 + relative));
          }
        }
      });
    }
    DT_ASSERT_OK_AND_ASSIGN(const auto errors, Compare(*device, problem, inputs, outputs));
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(errors[i].ok(), i != wrong)
          << errors[i].name << " " << errors[i].error << " " << errors[i].limit;
    }
  }
}

TEST(RingErrorsTest, WrongResultsAreBeyondTheirLimits) {
  ExpectCaught(DType::kF64, 1.5e-13);
  ExpectCaught(DType::kF32, 4e-6);
  ExpectCaught(DType::kBF16, 6e-3);
  ExpectCaught(DType::kF16, 7e-4);
}

TEST(RingErrorsTest, SixteenBitsAreHeldAgainstOneRank) {
  for (const RingError& error : ErrorsOfOneRank(Problem("full", DType::kBF16))) {
    EXPECT_EQ(error.ratio(), 1) << error.name;
    const bool is_lse = error.name == "lse";
    EXPECT_GT(error.error, is_lse ? 1e-9 : 1e-4) << error.name;
    EXPECT_EQ(error.limit, is_lse ? 0x1p-23 : 1.4 * *error.at_one) << error.name;
  }
}

}  // namespace
}  // namespace dtensor::cli
