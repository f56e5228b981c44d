// The oracle, against formulas that need none, and what it says of wrong results.
#include "dtensor/tools/cli/ring/ring_oracle.h"

#include <cmath>
#include <limits>
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

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr long double kMinusInfinite = -std::numeric_limits<long double>::infinity();

RingProblem Problem(const std::string& mask, DType dtype, int64_t seq = 21) {
  RingProblem problem;
  problem.mask = AttentionMask::Parse(mask).value();
  problem.dtype = dtype;
  problem.batch = 2, problem.heads = 4, problem.kv_heads = 2, problem.head_dim = 5;
  problem.q_length = problem.kv_length = seq;
  return problem;
}

std::vector<double> Doubles(const Tensor& tensor) { return ToHost<double>(tensor).value(); }

TEST(RingOracleTest, ThePlainFormulasAreTheKernels) {
  const auto device = MakeCpuDevice();
  for (const char* mask : {"full", "causal", "window:4", "prefix:5", "documents:0,3,14"}) {
    SCOPED_TRACE(mask);
    const RingProblem problem = Problem(mask, DType::kF64);
    DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
    DT_ASSERT_OK_AND_ASSIGN(const RingOutputs kernels,
                            RunOnOneRank(*device, problem, inputs, DType::kF64));
    const RingTruth plain = PlainAttention(problem, inputs);
    const Wide* wants[] = {&plain.o, &plain.lse, &plain.dq, &plain.dk, &plain.dv};
    int i = 0;
    for (const auto& [name, tensor] : kernels.Named()) {
      const double error = RelativeError(tensor, *wants[i++], 1);
      EXPECT_LT(error, 1e-14) << name;
      EXPECT_GT(error, 0) << name << ": a wider type sees what rounding does";
    }
  }
}

TEST(RingOracleTest, OfOneKeyAllIsKnown) {
  const auto device = MakeCpuDevice();
  const RingProblem problem = Problem("window:1", DType::kF64, 3);
  DT_ASSERT_OK_AND_ASSIGN(const RingInputs in, RandomInputs(*device, problem));
  const RingTruth truth = PlainAttention(problem, in);
  const std::vector<double> q = Doubles(in.q), k = Doubles(in.k), v = Doubles(in.v);
  const std::vector<double> dout = Doubles(in.dout);
  const auto key = [](int64_t row) { return row / 6 * 3 + row % 3; };  // 2 heads read one
  std::vector<double> dv(v.size());
  for (int64_t row = 0; row < 2 * 4 * 3; ++row) {
    double score = 0;
    for (int64_t x = 0; x < 5; ++x) {
      score += q[row * 5 + x] * k[key(row) * 5 + x] / std::sqrt(5.0);
      dv[key(row) * 5 + x] += dout[row * 5 + x];
      EXPECT_EQ(truth.o[row * 5 + x], v[key(row) * 5 + x]);
      EXPECT_NEAR(static_cast<double>(truth.dq[row * 5 + x]), 0, 1e-17);
    }
    EXPECT_NEAR(static_cast<double>(truth.lse[row]), score, 1e-14);
  }
  for (size_t i = 0; i < dv.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(truth.dk[i]), 0, 1e-17);
    EXPECT_NEAR(static_cast<double>(truth.dv[i]), dv[i], 1e-14);
  }
}

// Queries that see nothing: more queries than keys, which the command does not offer.
TEST(RingOracleTest, RowsThatSeeNothingAreNoNan) {
  const auto device = MakeCpuDevice();
  RingProblem problem = Problem("window:2", DType::kF64, 4);
  problem.q_length = 7;
  DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
  const RingTruth truth = PlainAttention(problem, inputs);
  EXPECT_EQ(truth.lse[6], kMinusInfinite);
  EXPECT_TRUE(std::isfinite(truth.lse[4]));
  for (const long double x : truth.dk) EXPECT_TRUE(std::isfinite(x));
  for (int64_t x = 0; x < 5; ++x) EXPECT_EQ(truth.o[6 * 5 + x], 0);
  DT_ASSERT_OK_AND_ASSIGN(const RingOutputs kernels,
                          RunOnOneRank(*device, problem, inputs, DType::kF64));
  EXPECT_LT(RelativeError(kernels.lse, truth.lse, 1), 1e-14);
}

TEST(RingOracleTest, RelativeErrors) {
  const auto device = MakeCpuDevice();
  const auto error = [&](const std::vector<double>& got, const Wide& want) {
    const Dims shape = {static_cast<int64_t>(got.size())};
    return RelativeError(FromHost<double>(*device, got, shape).value(), want, 1);
  };
  EXPECT_EQ(error({3, 4}, {3, 4}), 0);
  EXPECT_EQ(error({3, 5}, {3, 4}), 0.2);
  EXPECT_EQ(error({}, {}), 0);
  EXPECT_EQ(error({-kInfinite, 5}, {kMinusInfinite, 4}), 0.25);
  EXPECT_EQ(error({-kInfinite, 4}, {3, 4}), kInfinite);
  EXPECT_EQ(error({3, 4}, {kMinusInfinite, 4}), kInfinite);
  EXPECT_EQ(error({kInfinite, 4}, {kMinusInfinite, 4}), kInfinite);
  EXPECT_EQ(error({std::nan(""), 4}, {3, 4}), kInfinite);
  EXPECT_EQ(error({std::nan(""), 4}, {kMinusInfinite, 4}), kInfinite);
  // Next to terms of size 1, 1e-16 is what rounding leaves.
  EXPECT_NEAR(error({1e-16, -1e-16}, {3e-20L, 0}), 1e-16, 1e-18);
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

TEST(RingOracleTest, WrongResultsAreBeyondTheirLimits) {
  ExpectCaught(DType::kF64, 1.5e-13);
  ExpectCaught(DType::kF32, 4e-6);
  ExpectCaught(DType::kBF16, 6e-3);
  ExpectCaught(DType::kF16, 7e-4);
}

TEST(RingOracleTest, SixteenBitsAreHeldAgainstOneRank) {
  const auto device = MakeCpuDevice();
  const RingProblem problem = Problem("full", DType::kBF16);
  DT_ASSERT_OK_AND_ASSIGN(const RingInputs inputs, RandomInputs(*device, problem));
  DT_ASSERT_OK_AND_ASSIGN(const RingOutputs outputs,
                          RunOnOneRank(*device, problem, inputs, DType::kBF16));
  DT_ASSERT_OK_AND_ASSIGN(const auto errors, Compare(*device, problem, inputs, outputs));
  for (const RingError& error : errors) {
    EXPECT_EQ(error.ratio(), 1) << error.name;
    const bool is_lse = error.name == "lse";
    EXPECT_GT(error.error, is_lse ? 1e-9 : 1e-4) << error.name;
    EXPECT_EQ(error.limit, is_lse ? 0x1p-23 : 1.4 * *error.at_one) << error.name;
  }
}

}  // namespace
}  // namespace dtensor::cli
