// Attention whose keys come in several steps, and masks by global position.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/testing/attention_case.h"
#include "dtensor/runtime/testing/attention_steps.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

// `room`: how many times the limits.
template <typename T>
void Check(const Case& c, const Parts& parts, double room = 1) {
  SCOPED_TRACE(absl::StrCat(ToString(c), ", ", parts.size(), " parts"));
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<T>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunSteps<T>(*device, c, in, parts));
  const Limit limit = {kLimit<T>.forward * room, kLimit<T>.lse * room, kLimit<T>.backward * room};
  ExpectClose(out, ReferenceAttention(c.Problem(), in), limit);
  EXPECT_EQ(device->memory().live_bytes, 0);
}

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(),      AttentionMask::Causal(),
          *AttentionMask::Window(1),  *AttentionMask::Window(37),
          *AttentionMask::Prefix(50), *AttentionMask::Documents({0, 30, 31, 100})};
}

template <typename T>
class AttentionStepTest : public testing::Test {};
using Types = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionStepTest, Types);

TYPED_TEST(AttentionStepTest, MasksInAnySplit) {
  for (const AttentionMask& mask : Masks()) {
    const Case c = WithPositions({.s = 130, .t = 130, .q_heads = 2, .dim = 20}, mask);
    Check<TypeParam>(c, Contiguous(c.t, 1));
    Check<TypeParam>(c, Contiguous(c.t, 3));
    Check<TypeParam>(c, Striped(c.t, 4));
    Check<TypeParam>(c, Zigzag(c.t, 5));
    Parts uneven = Striped(c.t, 3);
    uneven.insert(uneven.begin(), std::vector<int64_t>());
    uneven[1].insert(uneven[1].end(), uneven[2].begin() + 1, uneven[2].end());
    uneven[2].resize(1);
    std::sort(uneven[1].begin(), uneven[1].end());
    uneven.emplace_back();
    Check<TypeParam>(c, uneven);
  }
}

// What one rank of several does: its own queries, blocks in the order in which a ring brings them.
TYPED_TEST(AttentionStepTest, QueriesOfOneRank) {
  for (const AttentionMask& mask : Masks()) {
    for (const int64_t rank : {0, 2}) {
      Case c = {.batch = 2, .t = 120, .q_heads = 6, .kv_heads = 2, .dim = 32};
      c.memory = rank == 0 ? Memory::kBatchHeadSeq : Memory::kSeqBatchHead;
      c.mask = mask;
      c.k_positions = IndexSet::Interval(0, c.t);
      const Parts parts = Zigzag(c.t, 3);
      c.q_positions = PositionsOf(c.k_positions, parts[rank]);
      c.s = c.q_positions.size();
      Check<TypeParam>(c, {parts[rank], parts[(rank + 2) % 3], parts[(rank + 1) % 3]});
    }
  }
}

// Gradients of so many keys go past the caches where their rows are whole cache lines. Those of 36
// elements are not.
TYPED_TEST(AttentionStepTest, GradientsPastTheCaches) {
  for (const int64_t dim : {64, 36}) {
    for (const Memory memory :
         {Memory::kBatchSeqHead, Memory::kBatchHeadSeq, Memory::kSeqBatchHead}) {
      Case c = {.batch = 2, .s = 13, .t = 1000, .q_heads = 4, .kv_heads = 2, .dim = dim};
      c = WithPositions(c, AttentionMask());
      c.memory = memory;
      Check<TypeParam>(c, Contiguous(c.t, 1));
    }
  }
}

// `n` positions in runs of any length, with and without gaps.
IndexSet RandomPositions(TestRandom& random, int64_t n) {
  std::vector<IndexRun> runs;
  for (int64_t at = random.In(0, 40); n > 0;) {
    const int64_t length = random.In(1, n);
    runs.push_back({at, length, 0, 1});
    at += length + random.In(0, 9);
    n -= length;
  }
  return IndexSet::FromIntervals(runs);
}

AttentionMask RandomMask(TestRandom& random) {
  switch (random.Below(5)) {
    case 0:
      return AttentionMask::Full();
    case 1:
      return AttentionMask::Causal();
    case 2:
      return *AttentionMask::Window(random.In(1, 90));
    case 3:
      return *AttentionMask::Prefix(random.In(1, 90));
    default:
      return *AttentionMask::Documents({0, random.In(1, 30), random.In(31, 70)});
  }
}

// Each key in one of the parts, whichever.
Parts RandomParts(TestRandom& random, int64_t t) {
  Parts parts(random.In(1, 4));
  for (int64_t j = 0; j < t; ++j) parts[random.Below(static_cast<int>(parts.size()))].push_back(j);
  return random.Coin() ? parts : Contiguous(t, static_cast<int64_t>(parts.size()));
}

TYPED_TEST(AttentionStepTest, RandomProblems) {
  TestRandom random;
  for (int i = 0; i < 25 && !testing::Test::HasFailure(); ++i) {
    const int64_t kv_heads = random.In(1, 2);
    Case c = {
        .batch = random.In(1, 2),
        .s = random.Of<int64_t>({1, 3, 17, 32, 63, 64, 65, 100, 130}),
        .t = random.Of<int64_t>({1, 30, 64, 65, 128, 140, 300}),
        .q_heads = kv_heads * random.In(1, 3),
        .kv_heads = kv_heads,
        .dim = random.Of<int64_t>({1, 5, 8, 16, 24, 40, 64, 80, 100, 128, 136}),
        .memory = random.Of({Memory::kBatchSeqHead, Memory::kBatchHeadSeq, Memory::kSeqBatchHead}),
        .scale = random.Of({0.0, 0.0, -0.1})};
    c.mask = RandomMask(random);
    c.q_positions = RandomPositions(random, c.s);
    c.k_positions = RandomPositions(random, c.t);
    if (random.Chance(20)) {
      c.dropout = {.rate = 0.3,
                   .seed = 9,
                   .batches = RandomPositions(random, c.batch),
                   .heads = RandomPositions(random, c.q_heads)};
    }
    // Small ones may have gradients of terms that cancel.
    Check<TypeParam>(c, RandomParts(random, c.t), 10);
  }
}

TYPED_TEST(AttentionStepTest, CrossAttention) {
  Check<TypeParam>(WithPositions({.s = 3, .t = 201, .q_heads = 2, .dim = 64}, AttentionMask()),
                   Contiguous(201, 7));
  const Case one = {.batch = 2, .s = 1, .t = 50, .q_heads = 6, .kv_heads = 2, .dim = 24};
  Check<TypeParam>(WithPositions(one, AttentionMask()), Striped(50, 3));
}

// More keys than the kernel's own blocks have, and windows that begin in the middle of them.
TYPED_TEST(AttentionStepTest, ManyKeys) {
  const Case c = {.s = 700, .t = 700, .dim = 64};
  for (const AttentionMask& mask : {*AttentionMask::Window(90), *AttentionMask::Window(600),
                                    *AttentionMask::Documents({0, 555, 690})}) {
    Check<TypeParam>(WithPositions(c, mask), Contiguous(c.t, 1));
    Check<TypeParam>(WithPositions(c, mask), Zigzag(c.t, 2));
  }
}

// Text that is generated: a GPU's kernel divides the keys, and some parts see nothing of them.
TYPED_TEST(AttentionStepTest, FewQueriesAtTheEndOfManyKeys) {
  for (const AttentionMask& mask :
       {AttentionMask::Causal(), *AttentionMask::Window(200), *AttentionMask::Window(700),
        *AttentionMask::Prefix(1100), *AttentionMask::Documents({0, 600, 1099})}) {
    for (const int64_t s : {1, 16}) {
      Case c = {.batch = 2, .s = s, .t = 1100, .q_heads = 2, .kv_heads = 1, .dim = 24};
      c.mask = mask;
      c.q_positions = IndexSet::Interval(1100 - s, 1100);
      c.k_positions = IndexSet::Interval(0, 1100);
      Check<TypeParam>(c, Contiguous(c.t, 1));
    }
  }
  Case c = WithPositions({.s = 7, .t = 1050, .dim = 16}, AttentionMask::Causal());  // at the begin
  Check<TypeParam>(c, Contiguous(c.t, 1));
  c.q_positions = IndexSet::Interval(3000, 3007);
  c.mask = *AttentionMask::Window(5);  // nothing at all
  Check<TypeParam>(c, Contiguous(c.t, 1));
}

// Errors do not grow with the number of parts.
TYPED_TEST(AttentionStepTest, ManyParts) {
  const Case c = WithPositions({.s = 256, .t = 256, .dim = 64}, AttentionMask::Causal());
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  const AttentionReference expected = ReferenceAttention(c.Problem(), in);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles one,
                          RunSteps<TypeParam>(*device, c, in, Contiguous(c.t, 1)));
  for (const int64_t n : {2, 3, 8, 32}) {
    SCOPED_TRACE(n);
    DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out,
                            RunSteps<TypeParam>(*device, c, in, Zigzag(c.t, n)));
    ExpectClose(out, expected, kLimit<TypeParam>);
    if (sizeof(TypeParam) > 2) continue;
    const auto errors = RelativeErrors(out, expected), of_one = RelativeErrors(one, expected);
    for (size_t i = 0; i < errors.size(); ++i) {
      const bool is_lse = i == 1;  // f32, so its rounding may be all there is
      EXPECT_LE(errors[i], 1.4 * std::max(of_one[i], is_lse ? 6e-8 : 0)) << kAttentionValues[i];
    }
  }
}

// Queries that see none of the keys, beside ones that do, in steps of which some are empty.
TYPED_TEST(AttentionStepTest, NothingToSee) {
  Case c = {.t = 40, .q_heads = 2, .dim = 20};
  c.mask = *AttentionMask::Window(10);
  c.q_positions = IndexSet::Interval(30, 130);
  c.k_positions = IndexSet::Interval(60, 100);
  c.s = 100;
  Check<TypeParam>(c, Contiguous(c.t, 1));
  Check<TypeParam>(c, Contiguous(c.t, 4));
  c.k_positions = IndexSet::Interval(200, 240);
  Check<TypeParam>(c, Contiguous(c.t, 2));
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out,
                          RunSteps<TypeParam>(*device, c, in, Contiguous(c.t, 2)));
  const Doubles zero(in.q.size(), 0);
  EXPECT_EQ(out.o, zero);
  EXPECT_EQ(out.dq, zero);
  EXPECT_EQ(out.dk, Doubles(in.k.size(), 0));
  for (const double lse : out.lse) EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
}

// Of 32 elements, bf16 goes in pairs.
TYPED_TEST(AttentionStepTest, NegativeScale) {
  Case c = WithPositions({.s = 60, .t = 60, .q_heads = 2, .dim = 32}, AttentionMask::Causal());
  c.scale = -.5;
  Check<TypeParam>(c, Contiguous(c.t, 1));
  Check<TypeParam>(c, Zigzag(c.t, 2));
}

// Gives back blocks that hold NaN, of all sizes to 1 MB that an allocator may keep apart.
void LeaveNan(Device& device) {
  std::vector<Tensor> tensors;
  for (int64_t unit = 64; unit <= 8192; unit *= 2) {
    for (int64_t n = 9 * unit; n <= 16 * unit; n += unit) {
      const auto tensor = FromHost<double>(device, Doubles(n, kNan), {n});
      DT_ASSERT_OK(tensor.status());
      tensors.push_back(*tensor);
    }
  }
}

// Rows that see nothing, behind all keys or on both sides of them, where scratch memory holds NaN.
TYPED_TEST(AttentionStepTest, NothingToSeeInMemoryThatHoldsNan) {
  const IndexSet behind = IndexSet::Interval(70, 75);
  const IndexSet around = IndexSet::FromIntervals({{10, 2, 0, 1}, {52, 1, 0, 1}, {70, 2, 0, 1}});
  for (const IndexSet& q_positions : {behind, around}) {
    Case c = {.s = 5, .t = 40, .q_heads = 2, .dim = 20};
    c.mask = *AttentionMask::Window(10);
    c.q_positions = q_positions;
    c.k_positions = IndexSet::Interval(20, 60);
    const std::unique_ptr<Device> device = MakeTestDevice();
    const AttentionInputs in = RandomInputs<TypeParam>(c);
    LeaveNan(*device);
    DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out,
                            RunSteps<TypeParam>(*device, c, in, Contiguous(c.t, 1)));
    ExpectClose(out, ReferenceAttention(c.Problem(), in), kLimit<TypeParam>);
  }
}

// Scores that grow from part to part, so that each part rescales what is carried.
TYPED_TEST(AttentionStepTest, LargestScoreComesLast) {
  const Case c = WithPositions({.s = 20, .t = 90, .dim = 16}, AttentionMask());
  const std::unique_ptr<Device> device = MakeTestDevice();
  AttentionInputs in = RandomInputs<TypeParam>(c);
  for (int64_t i = 0; i < c.s * c.dim; ++i) in.q[i] = i % c.dim == 0 ? 1 : 0;
  for (int64_t j = 0; j < c.t; ++j) in.k[j * c.dim] = static_cast<double>(4 * j);
  const AttentionReference expected = ReferenceAttention(c.Problem(), in);
  Parts parts = Contiguous(c.t, 9);
  for (int turn = 0; turn < 2; ++turn, std::reverse(parts.begin(), parts.end())) {
    DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles out, RunSteps<TypeParam>(*device, c, in, parts));
    EXPECT_LE(RelativeRms(out.o, expected.o), 20 * kLimit<TypeParam>.forward);
    EXPECT_LE(RelativeRms(out.lse, expected.lse), kLimit<TypeParam>.lse);
  }
}

// One step with all positions is the op, though its carry and gradients lie elsewhere.
TEST(AttentionStep, BitsOfTheOp) {
  const Case c = {.s = 300, .t = 1100, .q_heads = 2, .dim = 64, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<float>(c);
  DT_ASSERT_OK_AND_ASSIGN(const AttentionDoubles one,
                          RunSteps<float>(*device, c, in, Contiguous(c.t, 1)));
  DT_ASSERT_OK_AND_ASSIGN(const Rows<float> rows, MakeRows<float>(*device, c, in));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor k, FromValues<float>(*device, c.KShape(), c.memory, in.k));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor v, FromValues<float>(*device, c.KShape(), c.memory, in.v));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor dk, Filled<float>(*device, c.KShape(), c.memory, 0));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor dv, Filled<float>(*device, c.KShape(), c.memory, 0));
  DT_ASSERT_OK(Attention(*device, rows.q, k, v, c.Scale(), true, rows.o, rows.lse));
  DT_ASSERT_OK(AttentionGrad(*device, rows.q, k, v, rows.o, rows.lse, rows.dout, c.Scale(), true,
                             rows.dq, dk, dv));
  EXPECT_EQ(ToDoubles(rows.o).value(), one.o);
  EXPECT_EQ(ToDoubles(rows.lse).value(), one.lse);
  EXPECT_EQ(ToDoubles(rows.dq).value(), one.dq);
  EXPECT_EQ(ToDoubles(dk).value(), one.dk);
  EXPECT_EQ(ToDoubles(dv).value(), one.dv);
}

// Rows of bf16 that do not begin at even elements.
TEST(AttentionStep, OddStrides) {
  const Case c = {.s = 30, .t = 40, .dim = 32, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<BFloat16>(c);
  const auto padded = [&](const Doubles& values, int64_t rows) {
    const int64_t stride = c.dim + 1;
    std::vector<BFloat16> memory(rows * stride, BFloat16(static_cast<float>(kNan)));
    for (int64_t i = 0; i < rows * c.dim; ++i) {
      memory[i / c.dim * stride + i % c.dim] = BFloat16(static_cast<float>(values[i]));
    }
    return FromHost<BFloat16>(*device, memory, {rows * stride})
        .value()
        .View({1, rows, 1, c.dim}, {rows * stride, stride, stride, 1}, 0);
  };
  const Tensor q = padded(in.q, c.s), k = padded(in.k, c.t), v = padded(in.v, c.t);
  DT_ASSERT_OK_AND_ASSIGN(const Rows<BFloat16> rows, MakeRows<BFloat16>(*device, c, in));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor dk, Filled<float>(*device, c.KShape(), c.memory, kNan));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor dv, Filled<float>(*device, c.KShape(), c.memory, kNan));
  DT_ASSERT_OK(Attention(*device, q, k, v, c.Scale(), true, rows.o, rows.lse));
  DT_ASSERT_OK(AttentionGrad(*device, q, k, v, rows.o, rows.lse, padded(in.dout, c.s), c.Scale(),
                             true, rows.dq, dk, dv));
  const AttentionDoubles out = {*ToDoubles(rows.o), *ToDoubles(rows.lse), *ToDoubles(rows.dq),
                                *ToDoubles(dk), *ToDoubles(dv)};
  ExpectClose(out, ReferenceAttention(c.Problem(), in), kLimit<BFloat16>);
}

// Views that begin at one address, with other strides, and a row that is broadcast: the bits of
// operands that share nothing. (cuDNN takes no step of fewer than 64 rows.)
TEST(AttentionStep, OperandsOfOneMemory) {
  const Case c = {.s = 50, .t = 50, .dim = 64, .causal = true};
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<BFloat16>({.s = 2 * c.s, .t = 1, .dim = c.dim});
  const std::vector<BFloat16> memory(in.q.begin(), in.q.end());
  const Tensor all = FromHost<BFloat16>(*device, memory, {2 * c.s * c.dim}).value();
  const auto run = [&](auto operand) {
    const Tensor q = operand(c.dim), v = operand(2 * c.dim), dout = operand(0);
    const Rows<BFloat16> rows = MakeRows<BFloat16>(*device, c, RandomInputs<BFloat16>(c)).value();
    const Tensor dk = Filled<float>(*device, c.KShape(), c.memory, kNan).value();
    const Tensor dv = Filled<float>(*device, c.KShape(), c.memory, kNan).value();
    DT_EXPECT_OK(Attention(*device, q, q, v, c.Scale(), true, rows.o, rows.lse));
    DT_EXPECT_OK(
        AttentionGrad(*device, q, q, v, rows.o, rows.lse, dout, c.Scale(), true, rows.dq, dk, dv));
    return AttentionDoubles{*ToDoubles(rows.o), *ToDoubles(rows.lse), *ToDoubles(rows.dq),
                            *ToDoubles(dk), *ToDoubles(dv)};
  };
  const AttentionDoubles shared = run([&](int64_t stride) {
    return all.View({1, c.s, 1, c.dim}, {2 * c.s * c.dim, stride, c.dim, 1}, 0);
  });
  const AttentionDoubles apart = run([&](int64_t stride) {
    std::vector<BFloat16> rows;
    for (int64_t row = 0; row < c.s; ++row) {
      rows.insert(rows.end(), memory.begin() + row * stride, memory.begin() + row * stride + c.dim);
    }
    return FromHost<BFloat16>(*device, rows, {1, c.s, 1, c.dim}).value();
  });
  ExpectSameBits(shared, apart);
}

TYPED_TEST(AttentionStepTest, MergesPartsInAnyType) {
  using Wide = Stats<TypeParam>;
  const Case c = WithPositions({.batch = 2,
                                .s = 45,
                                .t = 90,
                                .q_heads = 4,
                                .kv_heads = 2,
                                .dim = 20,
                                .memory = Memory::kBatchHeadSeq},
                               *AttentionMask::Window(30));
  const std::unique_ptr<Device> device = MakeTestDevice();
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Rows<TypeParam> rows, MakeRows<TypeParam>(*device, c, in));
  const Parts parts = Contiguous(c.t, 4);  // the last two are behind all queries
  std::vector<AttentionPart> results(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    DT_ASSERT_OK_AND_ASSIGN(Block b, BlockOf<TypeParam>(*device, c, in, parts, i));
    b.step.first = b.step.last = true;
    DT_ASSERT_OK_AND_ASSIGN(results[i].o, Filled<Wide>(*device, c.QShape(), c.memory, kNan));
    DT_ASSERT_OK_AND_ASSIGN(results[i].lse,
                            Tensor::Empty(*device, rows.lse.dtype(), rows.lse.shape()));
    DT_ASSERT_OK(
        Attention(*device, rows.q, b.k, b.v, b.step, nullptr, results[i].o, results[i].lse));
  }
  DT_ASSERT_OK(MergeAttention(*device, results, rows.o, rows.lse));
  const AttentionReference expected = ReferenceAttention(c.Problem(), in);
  EXPECT_LE(RelativeRms(*ToDoubles(rows.o), expected.o), kLimit<TypeParam>.forward);
  EXPECT_LE(RelativeRms(*ToDoubles(rows.lse), expected.lse), kLimit<TypeParam>.lse);
  // In place, and nothing but parts that saw nothing.
  DT_ASSERT_OK(MergeAttention(*device, results, results[0].o, results[0].lse));
  EXPECT_LE(RelativeRms(*ToDoubles(results[0].o), expected.o), kLimit<Wide>.forward);
  DT_ASSERT_OK(MergeAttention(*device, {results[2], results[3]}, rows.o, rows.lse));
  EXPECT_EQ(*ToDoubles(rows.o), Doubles(in.q.size(), 0));
}

}  // namespace
}  // namespace dtensor::kernels
