#include "dtensor/runtime/kernels/attention.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/attention_case.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace dtensor::kernels {
namespace {
// The kernels' results, whose memory held NaN before.
template <typename T>
absl::StatusOr<AttentionDoubles> RunBoth(Device& device, const Case& c, const AttentionInputs& in) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  DT_ASSIGN_OR_RETURN(const Tensor q, FromValues<T>(device, c.QShape(), c.memory, in.q));
  DT_ASSIGN_OR_RETURN(const Tensor k, FromValues<T>(device, c.KShape(), c.memory, in.k));
  DT_ASSIGN_OR_RETURN(const Tensor v, FromValues<T>(device, c.KShape(), c.memory, in.v));
  DT_ASSIGN_OR_RETURN(const Tensor dout, FromValues<T>(device, c.QShape(), c.memory, in.dout));
  DT_ASSIGN_OR_RETURN(const Tensor o, Filled<T>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dq, Filled<T>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dk, Filled<T>(device, c.KShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dv, Filled<T>(device, c.KShape(), c.memory, kNan));
  const DType stats = std::is_same_v<T, double> ? DType::kF64 : DType::kF32;
  DT_ASSIGN_OR_RETURN(const Tensor lse, Tensor::Empty(device, stats, {c.batch, c.q_heads, c.s}));
  DT_RETURN_IF_ERROR(Attention(device, q, k, v, c.Scale(), c.causal, o, lse));
  DT_RETURN_IF_ERROR(AttentionGrad(device, q, k, v, o, lse, dout, c.Scale(), c.causal, dq, dk, dv));
  AttentionDoubles out;
  DT_ASSIGN_OR_RETURN(out.o, ToDoubles(o));
  DT_ASSIGN_OR_RETURN(out.lse, ToDoubles(lse));
  DT_ASSIGN_OR_RETURN(out.dq, ToDoubles(dq));
  DT_ASSIGN_OR_RETURN(out.dk, ToDoubles(dk));
  DT_ASSIGN_OR_RETURN(out.dv, ToDoubles(dv));
  return out;
}

template <typename T>
void Check(const Case& c) {
  SCOPED_TRACE(ToString(c));
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<T>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunBoth<T>(*device, c, in));
  ExpectClose(out, ReferenceAttention(c.Problem(), in), kLimit<T>);
  EXPECT_EQ(device->memory().live_bytes, 0);
}

template <typename T>
class AttentionTest : public testing::Test {};
using Types = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionTest, Types);

TYPED_TEST(AttentionTest, OddLengths) {
  for (const int64_t s : {1, 3, 17, 65, 130}) {
    for (const bool causal : {false, true}) {
      Check<TypeParam>({.s = s, .t = s, .q_heads = 2, .kv_heads = 2, .causal = causal});
    }
  }
}

TYPED_TEST(AttentionTest, KeysAndQueriesDiffer) {
  for (const auto& [s, t] : {std::pair(1, 130), {130, 1}, {17, 65}, {65, 17}, {100, 60}}) {
    for (const bool causal : {false, true}) {
      Check<TypeParam>({.s = s, .t = t, .dim = 32, .causal = causal});
    }
  }
}

TYPED_TEST(AttentionTest, HeadSizes) {
  for (const int64_t dim : {1, 8, 20, 31, 33, 48, 64, 96, 100, 128, 160}) {
    Check<TypeParam>({.s = 37, .t = 41, .dim = dim, .causal = true});
  }
}

TYPED_TEST(AttentionTest, GroupedQueries) {
  Check<TypeParam>({.batch = 2, .s = 33, .t = 33, .q_heads = 6, .kv_heads = 2, .causal = true});
  Check<TypeParam>({.batch = 2, .s = 20, .t = 35, .q_heads = 4, .kv_heads = 1, .dim = 24});
}

TYPED_TEST(AttentionTest, OrdersOfMemory) {
  for (const Memory memory :
       {Memory::kBatchSeqHead, Memory::kBatchHeadSeq, Memory::kSeqBatchHead}) {
    for (const int64_t dim : {16, 20}) {
      Check<TypeParam>({.batch = 2,
                        .s = 40,
                        .t = 50,
                        .q_heads = 4,
                        .kv_heads = 2,
                        .dim = dim,
                        .causal = true,
                        .memory = memory});
    }
  }
}

// More keys than a block has: rows carry their sums from one to the next.
TYPED_TEST(AttentionTest, ManyKeys) {
  for (const bool causal : {false, true}) {
    Check<TypeParam>({.s = 50, .t = 1100, .q_heads = 2, .dim = 20, .causal = causal});
    Check<TypeParam>({.s = 30, .t = 600, .dim = 128, .causal = causal});
  }
  Check<TypeParam>({.s = 700, .t = 600, .dim = 64, .causal = true});
}

// A GPU's kernel divides the keys among blocks.
TYPED_TEST(AttentionTest, FewQueriesManyKeys) {
  for (const int64_t s : {1, 32, 33}) {
    Check<TypeParam>({.s = s, .t = 1025, .q_heads = 4, .kv_heads = 2, .dim = 20, .causal = true});
  }
  Check<TypeParam>({.batch = 2, .s = 1, .t = 1700, .dim = 128, .memory = Memory::kSeqBatchHead});
  Check<TypeParam>({.s = 2, .t = 1024, .dim = 160});
  for (const int64_t s : {5, 16, 17}) {
    Check<TypeParam>({.s = s, .t = 1100, .q_heads = 2, .kv_heads = 2, .dim = 64, .causal = true});
  }
  Check<TypeParam>({.s = 1, .t = 1030, .q_heads = 12, .kv_heads = 1, .dim = 72, .causal = true});
  Check<TypeParam>({.batch = 2, .s = 1, .t = 90, .q_heads = 10, .kv_heads = 2, .causal = true});
}

// So many that parts are longer than usual. Gradients are sums over all keys in f32, and less
// exact.
TEST(Attention, OneQueryOfVeryManyKeys) {
  const Case c = {.s = 1, .t = 34000, .dim = 8};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<float>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor q, FromValues<float>(*device, c.QShape(), c.memory, in.q));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor k, FromValues<float>(*device, c.KShape(), c.memory, in.k));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor v, FromValues<float>(*device, c.KShape(), c.memory, in.v));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor o, Filled<float>(*device, c.QShape(), c.memory, 0));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor lse, Tensor::Empty(*device, DType::kF32, {1, 1, 1}));
  DT_ASSERT_OK(Attention(*device, q, k, v, c.Scale(), false, o, lse));
  AttentionReference expected = ReferenceAttention(c.Problem(), in);
  DT_ASSERT_OK_AND_ASSIGN(const Doubles results, ToDoubles(o));
  DT_ASSERT_OK_AND_ASSIGN(const Doubles sums, ToDoubles(lse));
  ASSERT_EQ(results.size(), expected.o.size());
  for (size_t i = 0; i < results.size(); ++i) EXPECT_NEAR(results[i], expected.o[i], 3e-8);
  EXPECT_NEAR(sums[0], expected.lse[0], 3e-5);
}

TYPED_TEST(AttentionTest, Empty) {
  Check<TypeParam>({.batch = 0, .s = 5, .t = 5});
  Check<TypeParam>({.s = 0, .t = 5});
  Check<TypeParam>({.s = 5, .t = 0, .q_heads = 4, .kv_heads = 2});
  Check<TypeParam>({.s = 5, .t = 0, .dim = 20, .causal = true});
  Check<TypeParam>({.s = 0, .t = 0});
  const std::unique_ptr<Device> device = MakeTestDevice();
  const Case no_heads = {.s = 5, .t = 5, .q_heads = 0, .kv_heads = 0};
  DT_EXPECT_OK(RunBoth<TypeParam>(*device, no_heads, RandomInputs<TypeParam>(no_heads)));
}

// Scores far apart: most probabilities underflow.
TYPED_TEST(AttentionTest, LargeScores) {
  const Case c = {.s = 40, .t = 600, .dim = 64, .causal = true, .scale = 20};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunBoth<TypeParam>(*device, c, in));
  // A score's error, in units of the score, is its probability's relative error.
  const Limit limit = kLimit<TypeParam>;
  ExpectClose(out, ReferenceAttention(c.Problem(), in),
              {500 * limit.forward, limit.lse, 500 * limit.backward});
}

TEST(Attention, GradientsAreFiniteDifferences) {
  const Case c = {
      .batch = 2, .s = 5, .t = 6, .q_heads = 2, .kv_heads = 1, .dim = 3, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<double>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles at, RunBoth<double>(*device, c, in));
  constexpr double kStep = 1e-5;
  for (const auto& [input, gradient] : {std::pair(&AttentionInputs::q, &AttentionDoubles::dq),
                                        {&AttentionInputs::k, &AttentionDoubles::dk},
                                        {&AttentionInputs::v, &AttentionDoubles::dv}}) {
    Doubles slopes;
    for (size_t i = 0; i < (in.*input).size(); ++i) {
      double change = 0;
      for (const double step : {kStep, -kStep}) {
        AttentionInputs moved = in;
        (moved.*input)[i] += step;
        DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunBoth<double>(*device, c, moved));
        for (size_t j = 0; j < out.o.size(); ++j) change += out.o[j] * in.dout[j] * step;
      }
      slopes.push_back(change / (2 * kStep * kStep));
    }
    EXPECT_LE(RelativeRms(at.*gradient, slopes), 1e-8);
  }
}

void CheckNanIsKept(const Case& c) {
  SCOPED_TRACE(ToString(c));
  const std::unique_ptr<Device> device = MakeTestDevice();
  AttentionInputs in = RandomInputs<float>(c);
  in.q[3 * c.dim] = std::numeric_limits<double>::quiet_NaN();
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunBoth<float>(*device, c, in));
  for (int64_t i = 0; i < c.s; ++i) {
    EXPECT_EQ(std::isnan(out.o[i * c.dim]), i == 3) << i;
    EXPECT_EQ(std::isnan(out.lse[i]), i == 3) << i;
  }
}

TEST(Attention, NanIsKept) {
  CheckNanIsKept({.s = 20, .t = 20});
  CheckNanIsKept({.s = 5, .t = 1100});
}

constexpr uint64_t kSign = uint64_t{1} << 63, kQuiet = 0x7ff8000000000000;
// The lowest bit of a T, and all: the NaN that GPUs make.
template <typename T>
constexpr uint64_t kPayloads[] = {std::is_same_v<T, float> ? uint64_t{1} << 29 : 1,
                                  (uint64_t{1} << 51) - 1};

template <typename T>
void CheckNanWithPayload(Device& device, const Case& c, uint64_t bits) {
  constexpr int64_t kRow = 3;
  const auto nan = std::bit_cast<double>(bits);
  const auto is_nan = [](double x) { return std::isnan(x); };
  AttentionInputs in = RandomInputs<T>(c);
  in.q[kRow * c.dim] = nan;
  DT_ASSERT_OK_AND_ASSIGN(AttentionDoubles out, RunBoth<T>(device, c, in));
  for (int64_t i = 0; i < c.s; ++i) {
    EXPECT_EQ(std::isnan(out.lse[i]), i == kRow) << i;
    for (int64_t j = 0; j < c.dim; ++j) {
      EXPECT_EQ(std::isnan(out.o[i * c.dim + j]), i == kRow) << i;
      EXPECT_EQ(std::isnan(out.dq[i * c.dim + j]), i == kRow) << i;
    }
  }
  EXPECT_TRUE(absl::c_all_of(out.dk, is_nan));
  EXPECT_TRUE(absl::c_all_of(out.dv, is_nan));
  // All queries see it.
  in = RandomInputs<T>(c);
  in.k[(c.t - 1) * c.dim] = nan;
  DT_ASSERT_OK_AND_ASSIGN(out, RunBoth<T>(device, c, in));
  for (const auto* result : {&out.o, &out.lse, &out.dq, &out.dk, &out.dv}) {
    EXPECT_TRUE(absl::c_all_of(*result, is_nan));
  }
  // Weights do not depend on values; the gradients of scores do.
  in = RandomInputs<T>(c);
  in.v[(c.t - 1) * c.dim] = nan;
  DT_ASSERT_OK_AND_ASSIGN(out, RunBoth<T>(device, c, in));
  for (int64_t i = 0; i < c.s; ++i) EXPECT_TRUE(std::isnan(out.o[i * c.dim])) << i;
  EXPECT_TRUE(absl::c_none_of(out.lse, is_nan));
  EXPECT_TRUE(absl::c_none_of(out.dv, is_nan));
  EXPECT_TRUE(absl::c_all_of(out.dq, is_nan));
}

// The bits behind the first are not taken for an exponent.
TEST(Attention, NanWithPayloadIsKept) {
  const std::unique_ptr<Device> device = MakeTestDevice();
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t left = supported; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    for (const int64_t t : {1, 2, 5, 20, 600}) {
      const Case c = {.s = 9, .t = t, .dim = 4};
      for (const uint64_t sign : {uint64_t{0}, kSign}) {
        SCOPED_TRACE(t);
        for (const uint64_t payload : kPayloads<float>) {
          CheckNanWithPayload<float>(*device, c, sign | kQuiet | payload);
        }
        for (const uint64_t payload : kPayloads<double>) {
          CheckNanWithPayload<double>(*device, c, sign | kQuiet | payload);
        }
      }
    }
  }
  hwy::GetChosenTarget().Update(supported);
}

// Every instruction set that this machine can run.
TEST(Attention, InstructionSets) {
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t left = supported; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    for (const int64_t dim : {20, 64}) {
      const Case c = {.batch = 2, .s = 70, .t = 90, .q_heads = 2, .dim = dim, .causal = true};
      Check<float>(c);
      Check<double>(c);
      Check<BFloat16>(c);
      Check<Float16>(c);
    }
    Check<float>({.s = 30, .t = 600, .dim = 128, .causal = true});
  }
  hwy::GetChosenTarget().Update(supported);
}

// A head's bits depend neither on its neighbours nor on how memory is laid out, nor on the device.
TEST(Attention, BitsAreTheSame) {
  Case c = {.batch = 2, .s = 70, .t = 90, .q_heads = 4, .kv_heads = 2, .dim = 32, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<float>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunBoth<float>(*device, c, in));
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles again, RunBoth<float>(*device, c, in));
  ExpectSameBits(again, out);
  c.memory = Memory::kBatchHeadSeq;
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles transposed, RunBoth<float>(*device, c, in));
  ExpectSameBits(transposed, out);
  const std::unique_ptr<Device> deferred = MakeLateTestDevice();
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles later, RunBoth<float>(*deferred, c, in));
  ExpectSameBits(later, out);

  // The second half of the heads alone.
  const auto half = [&](const Doubles& x, int64_t heads) {
    const int64_t width = heads * c.dim;
    Doubles part;
    for (size_t row = 0; row < x.size(); row += width) {
      part.insert(part.end(), x.begin() + row + width / 2, x.begin() + row + width);
    }
    return part;
  };
  const AttentionInputs half_in = {half(in.q, 4), half(in.k, 2), half(in.v, 2), half(in.dout, 4)};
  c.q_heads /= 2;
  c.kv_heads /= 2;
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles half_out, RunBoth<float>(*device, c, half_in));
  EXPECT_EQ(half_out.o, half(out.o, 4));
  EXPECT_EQ(half_out.dq, half(out.dq, 4));
  EXPECT_EQ(half_out.dk, half(out.dk, 2));
  EXPECT_EQ(half_out.dv, half(out.dv, 2));
}

TEST(Attention, MetaDeviceHasNoValues) {
  const std::unique_ptr<Device> device = MakeMetaDevice();
  const Case c = {.s = 20, .t = 20};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor q, Tensor::Empty(*device, DType::kF32, c.QShape()));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor lse, Tensor::Empty(*device, DType::kF32, {1, 1, c.s}));
  DT_EXPECT_OK(Attention(*device, q, q, q, 1, true, q, lse));
  DT_EXPECT_OK(AttentionGrad(*device, q, q, q, q, lse, q, 1, true, q, q, q));
}

}  // namespace
}  // namespace dtensor::kernels
