// Attention that cuDNN computes on a GPU: its values, and that it is cuDNN which computes it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/cudnn.h"
#include "dtensor/runtime/testing/attention_case.h"
#include "dtensor/runtime/testing/attention_steps.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

// A fake cuDNN that is told to refuse all plans, to make none, or not to start.
bool RefusesAll() {
  const char* const said = std::getenv("DTENSOR_FAKE_CUDNN");
  const std::string what = said == nullptr ? "" : said;
  return what == "none" || what == "broken" || what == "absent";
}

// All keys in one step, o in q's type or wide, gradients of type G.
template <typename T, typename O = T, typename G = T>
absl::StatusOr<AttentionDoubles> RunAll(Device& device, const Case& c, const AttentionInputs& in) {
  DT_ASSIGN_OR_RETURN(const Tensor q, FromValues<T>(device, c.QShape(), c.memory, in.q));
  DT_ASSIGN_OR_RETURN(const Tensor k, FromValues<T>(device, c.KShape(), c.memory, in.k));
  DT_ASSIGN_OR_RETURN(const Tensor v, FromValues<T>(device, c.KShape(), c.memory, in.v));
  DT_ASSIGN_OR_RETURN(const Tensor dout, FromValues<T>(device, c.QShape(), c.memory, in.dout));
  DT_ASSIGN_OR_RETURN(const Tensor o, Filled<O>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dq, Filled<G>(device, c.QShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dk, Filled<G>(device, c.KShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor dv, Filled<G>(device, c.KShape(), c.memory, kNan));
  DT_ASSIGN_OR_RETURN(const Tensor lse,
                      Tensor::Empty(device, DType::kF32, {c.batch, c.q_heads, c.s}));
  DT_ASSIGN_OR_RETURN(const Tensor delta, Tensor::Empty(device, DType::kF32, lse.shape()));
  DT_RETURN_IF_ERROR(Attention(device, q, k, v, c.Step(), nullptr, o, lse));
  DT_ASSIGN_OR_RETURN(const Doubles o_values, ToDoubles(o));
  DT_ASSIGN_OR_RETURN(const Tensor narrow, FromValues<T>(device, c.QShape(), c.memory, o_values));
  DT_RETURN_IF_ERROR(AttentionDelta(device, narrow, dout, delta));
  DT_RETURN_IF_ERROR(
      AttentionGrad(device, q, k, v, lse, delta, dout, c.Step(), dq, dk, dv, &narrow));
  AttentionDoubles out;
  out.o = o_values;
  DT_ASSIGN_OR_RETURN(out.lse, ToDoubles(lse));
  DT_ASSIGN_OR_RETURN(out.dq, ToDoubles(dq));
  DT_ASSIGN_OR_RETURN(out.dk, ToDoubles(dk));
  DT_ASSIGN_OR_RETURN(out.dv, ToDoubles(dv));
  return out;
}

// Weights are rounded to 16 bits before they meet the values, and so are a group's gradients.
template <typename T>
Limit LimitOf() {
  return {1.5 * kLimit<T>.forward, kLimit<T>.lse, 1.5 * kLimit<T>.backward};
}

template <typename T, typename O = T, typename G = T>
void Check(const Case& c) {
  SCOPED_TRACE(ToString(c));
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<T>(c);
  const auto out = RunAll<T, O, G>(*device, c, in);
  DT_ASSERT_OK(out.status());
  ExpectClose(*out, ReferenceAttention(c.Problem(), in), LimitOf<T>());
  // What is wide is the portable kernel's.
  const int steps = (std::is_same_v<O, T> ? 1 : 0) + (std::is_same_v<G, T> ? 1 : 0);
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : steps);
  EXPECT_EQ(device->memory().live_bytes, 0);
}

template <typename T>
class AttentionCudnnTest : public testing::Test {};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionCudnnTest, Types);

TYPED_TEST(AttentionCudnnTest, Lengths) {
  for (const int64_t s : {64, 65, 130}) {
    for (const bool causal : {false, true}) {
      Check<TypeParam>({.s = s, .t = s, .q_heads = 2, .kv_heads = 2, .dim = 32, .causal = causal});
    }
  }
  Check<TypeParam>({.s = 70, .t = 200, .q_heads = 2, .kv_heads = 2, .dim = 32});
  Check<TypeParam>({.s = 200, .t = 70, .q_heads = 2, .kv_heads = 2, .dim = 32});
}

TYPED_TEST(AttentionCudnnTest, HeadSizes) {
  for (const int64_t dim : {8, 40, 104, 128}) {
    Check<TypeParam>({.s = 66, .t = 66, .dim = dim, .causal = true});
  }
}

TYPED_TEST(AttentionCudnnTest, GroupedQueriesInAnyOrderOfMemory) {
  for (const Memory memory :
       {Memory::kBatchSeqHead, Memory::kBatchHeadSeq, Memory::kSeqBatchHead}) {
    Case c = {.batch = 2, .s = 80, .t = 80, .q_heads = 6, .kv_heads = 2, .dim = 16};
    c.causal = true;
    c.memory = memory;
    Check<TypeParam>(c);
    Check<TypeParam, float, float>(c);
  }
}

TYPED_TEST(AttentionCudnnTest, WideResults) {
  const Case c = {.batch = 2, .s = 72, .t = 72, .q_heads = 2, .kv_heads = 2, .causal = true};
  Check<TypeParam, float>(c);
  Check<TypeParam, TypeParam, float>(c);
}

// As a rank of a ring meets them: its own block, causal, and others, whole or in part.
TYPED_TEST(AttentionCudnnTest, StepsOfARing) {
  for (const int64_t rank : {0, 2}) {
    Case c = {.batch = 1, .t = 210, .q_heads = 4, .kv_heads = 2, .dim = 16};
    c.mask = AttentionMask::Causal();
    c.k_positions = IndexSet::Interval(0, c.t);
    Parts parts = Zigzag(c.t, 3);
    c.q_positions = PositionsOf(c.k_positions, parts[rank]);
    c.s = c.q_positions.size();
    std::rotate(parts.begin(), parts.begin() + rank, parts.end());
    SCOPED_TRACE(rank);
    const std::unique_ptr<Device> device = MakeTestDevice();
    const AttentionInputs in = RandomInputs<TypeParam>(c);
    const auto out = RunSteps<TypeParam>(*device, c, in, parts);
    DT_ASSERT_OK(out.status());
    ExpectClose(*out, ReferenceAttention(c.Problem(), in), LimitOf<TypeParam>());
    // A zigzag ring's others are seen in part but for the one step that halves would make whole.
    EXPECT_GE(CudnnSteps(*device), RefusesAll() ? 0 : 2);
    AllowCudnn(*device, false);
    const int64_t before = CudnnSteps(*device);
    const auto portable = RunSteps<TypeParam>(*device, c, in, parts);
    DT_ASSERT_OK(portable.status());
    EXPECT_EQ(CudnnSteps(*device), before);
    ExpectClose(*portable, ReferenceAttention(c.Problem(), in), kLimit<TypeParam>);
  }
}

// Contiguous blocks under a causal mask: whole ones, then the rank's own. All are cuDNN's, and the
// carry goes through them.
TYPED_TEST(AttentionCudnnTest, ACarryThroughWholeBlocks) {
  Case c = {.s = 100, .t = 400, .q_heads = 4, .kv_heads = 4, .dim = 24};
  c.mask = AttentionMask::Causal();
  c.q_positions = IndexSet::Interval(300, 400);
  c.k_positions = IndexSet::Interval(0, 400);
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  const auto out = RunSteps<TypeParam>(*device, c, in, Contiguous(c.t, 4));
  DT_ASSERT_OK(out.status());
  ExpectClose(*out, ReferenceAttention(c.Problem(), in), LimitOf<TypeParam>());
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 8);
  // Steps of both kinds join: a block that is seen in part comes in between.
  Parts parts = Contiguous(c.t, 4);
  parts.push_back({parts[3].begin() + 30, parts[3].end()});
  parts[3].resize(30);
  const auto mixed = RunSteps<TypeParam>(*device, c, in, parts);
  DT_ASSERT_OK(mixed.status());
  ExpectClose(*mixed, ReferenceAttention(c.Problem(), in), LimitOf<TypeParam>());
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 14);
}

TYPED_TEST(AttentionCudnnTest, BackwardInSeveralRuns) {
  Case c = {.batch = 2, .s = 64, .t = 96, .q_heads = 8, .kv_heads = 4, .dim = 16};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  const auto whole = RunAll<TypeParam>(*device, c, in);
  DT_ASSERT_OK(whole.status());
  const int64_t of_head = 2 * 2 * c.s * c.t;
  for (const int64_t heads : {1, 2, 3, 4}) {
    SetCudnnScoreBytes(*device, heads * of_head);
    const auto out = RunAll<TypeParam>(*device, c, in);
    DT_ASSERT_OK(out.status());
    ExpectClose(*out, ReferenceAttention(c.Problem(), in), LimitOf<TypeParam>());
  }
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 10);
  SetCudnnScoreBytes(*device, of_head - 1);
  DT_ASSERT_OK(RunAll<TypeParam>(*device, c, in).status());
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 11);  // forward alone
}

// The statistics of a run's heads begin where those of the heads before them end.
TYPED_TEST(AttentionCudnnTest, BackwardInRunsOfOddManyRows) {
  const Case c = {.s = 65, .t = 65, .q_heads = 2, .kv_heads = 2, .dim = 16, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  SetCudnnScoreBytes(*device, 2 * c.s * c.t);
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  const auto out = RunAll<TypeParam>(*device, c, in);
  DT_ASSERT_OK(out.status());
  ExpectClose(*out, ReferenceAttention(c.Problem(), in), LimitOf<TypeParam>());
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 2);
}

// One entry of a batch, as where entries see keys at positions of their own.
TYPED_TEST(AttentionCudnnTest, StatisticsMayBeginAnywhere) {
  const Case c = {.s = 65, .t = 65, .dim = 16, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const auto whole, RunAll<TypeParam>(*device, c, in));
  const auto make = [&](const Dims& shape, const Doubles& values) {
    return FromValues<TypeParam>(*device, shape, c.memory, values).value();
  };
  const Tensor q = make(c.QShape(), in.q), k = make(c.KShape(), in.k), v = make(c.KShape(), in.v);
  const Tensor o = make(c.QShape(), in.q);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor all, Tensor::Empty(*device, DType::kF32, {2 * c.s}));
  DT_ASSERT_OK(device->FillBytes(all.raw(), 0, all.bytes()));
  const Tensor lse = all.View({1, 1, c.s}, {c.s, c.s, 1}, c.s);
  DT_ASSERT_OK(Attention(*device, q, k, v, c.Step(), nullptr, o, lse));
  DT_ASSERT_OK_AND_ASSIGN(const Doubles there, ToDoubles(lse));
  EXPECT_EQ(there, whole.lse);
  EXPECT_THAT(ToDoubles(all.View({c.s}, {1}, 0)), IsOkAndHolds(Doubles(c.s, 0)));
  EXPECT_EQ(CudnnSteps(*device), RefusesAll() ? 0 : 3);
}

// A block's o is rounded, and o of its keys and those before them once more: as the wide one is.
TYPED_TEST(AttentionCudnnTest, TheLastBlockOfACarryIsNotRoundedFirst) {
  Case c = {.s = 96, .t = 192, .q_heads = 2, .kv_heads = 2, .dim = 16};
  c = WithPositions(c, AttentionMask::Full());
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Rows<TypeParam> rows, MakeRows<TypeParam>(*device, c, in));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor wide, Filled<float>(*device, c.QShape(), c.memory, kNan));
  for (const Tensor& o : {rows.o, wide}) {
    for (size_t i = 0; i < 2; ++i) {
      DT_ASSERT_OK_AND_ASSIGN(const auto b,
                              BlockOf<TypeParam>(*device, c, in, Contiguous(c.t, 2), i));
      DT_ASSERT_OK(Attention(*device, rows.q, b.k, b.v, b.step, &rows.carry, o, rows.lse));
    }
  }
  DT_ASSERT_OK_AND_ASSIGN(const Doubles values, ToDoubles(wide));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor rounded,
                          FromValues<TypeParam>(*device, c.QShape(), c.memory, values));
  DT_ASSERT_OK_AND_ASSIGN(const Doubles once, ToDoubles(rounded));
  EXPECT_THAT(ToDoubles(rows.o), IsOkAndHolds(once));
}

// Whether it can start or not.
TEST(AttentionCudnn, WhatIsNotAllowedHasNotFailed) {
  const Case c = {.s = 64, .t = 64, .dim = 16, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  AllowCudnn(*device, false);
  SetCudnnScoreBytes(*device, 1);
  const AttentionInputs in = RandomInputs<float>(c);
  DT_ASSERT_OK((RunAll<float, float, float>(*device, c, in).status()));
  DT_EXPECT_OK(device->failure());
  EXPECT_EQ(CudnnSteps(*device), 0);
}

TEST(AttentionCudnn, BitsAreTheSame) {
  const Case c = {.batch = 2, .s = 192, .t = 192, .q_heads = 4, .kv_heads = 2, .causal = true};
  const AttentionInputs in = RandomInputs<BFloat16>(c);
  const std::unique_ptr<Device> device = MakeTestDevice();
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles first, RunAll<BFloat16>(*device, c, in));
  for (int i = 0; i < 3; ++i) {
    DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles again, RunAll<BFloat16>(*device, c, in));
    ExpectSameBits(again, first);
  }
  const std::unique_ptr<Device> other = MakeTestDevice();
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles there, RunAll<BFloat16>(*other, c, in));
  ExpectSameBits(there, first);
}

}  // namespace
}  // namespace dtensor::kernels
