// Dropout of attention's weights, against an oracle that knows the mask element by element.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

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
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace dtensor::kernels {
namespace {

AttentionDropout DropoutOf(const Case& c, double rate, uint64_t seed = 0x123456789abcdef) {
  return {rate, seed, IndexSet::Interval(5, 5 + c.batch), IndexSet::Interval(3, 3 + c.q_heads)};
}

Case Dropped(Case c, double rate, const AttentionMask& mask) {
  c = WithPositions(c, mask);
  c.dropout = DropoutOf(c, rate);
  return c;
}

template <typename T>
AttentionDoubles ResultsOf(const Case& c, const AttentionInputs& in, const Parts& parts) {
  const std::unique_ptr<Device> device = MakeTestDevice();
  auto results = RunSteps<T>(*device, c, in, parts);
  DT_EXPECT_OK(results.status());
  EXPECT_EQ(device->memory().live_bytes, 0);
  return results.ok() ? *std::move(results) : AttentionDoubles();
}

template <typename T>
class AttentionDropoutTest : public testing::Test {};
using Types = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionDropoutTest, Types);

TYPED_TEST(AttentionDropoutTest, DropsWhatPhiloxSays) {
  for (const AttentionMask& mask : {AttentionMask::Full(), AttentionMask::Causal(),
                                    *AttentionMask::Documents({0, 30, 31, 100})}) {
    for (const double rate : {0.1, 0.5}) {
      const Case c = Dropped(
          {.batch = 2, .s = 130, .t = 130, .q_heads = 4, .kv_heads = 2, .dim = 32}, rate, mask);
      const AttentionInputs in = RandomInputs<TypeParam>(c);
      const AttentionReference expected = ReferenceAttention(c.Problem(), in);
      for (const Parts& parts :
           {Contiguous(c.t, 1), Contiguous(c.t, 3), Striped(c.t, 4), Zigzag(c.t, 5)}) {
        ExpectClose(ResultsOf<TypeParam>(c, in, parts), expected, kLimit<TypeParam>);
      }
    }
  }
}

// One query for each head, whose keys a GPU's kernel divides.
TYPED_TEST(AttentionDropoutTest, OneQueryOfManyKeys) {
  const Case c = Dropped({.batch = 2, .s = 1, .t = 1100, .q_heads = 4, .kv_heads = 2, .dim = 24},
                         0.4, AttentionMask::Full());
  const AttentionInputs in = RandomInputs<TypeParam>(c);
  ExpectClose(ResultsOf<TypeParam>(c, in, Contiguous(c.t, 1)), ReferenceAttention(c.Problem(), in),
              kLimit<TypeParam>);
}

// All scores are 0 and value j is the j-th unit vector, so that o shows the mask.
AttentionInputs MaskInputs(const Case& c) {
  AttentionInputs in;
  in.q.assign(NumElements(c.QShape()), 0);
  in.k.assign(NumElements(c.KShape()), 0);
  in.v = in.k;
  in.dout = in.q;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t j = 0; j < c.t; ++j) in.v[(b * c.t + j) * c.dim + j] = 1;
  }
  return in;
}

Case MaskCase(double rate, int64_t s = 70) {
  return Dropped({.batch = 2, .s = s, .t = 61, .q_heads = 3, .dim = 61}, rate,
                 AttentionMask::Full());
}

// However keys are cut into steps, wherever rows and keys lie.
TYPED_TEST(AttentionDropoutTest, TheMaskIsThatOfGlobalPositions) {
  if (sizeof(Stats<TypeParam>) > sizeof(TypeParam)) return;  // o is rounded, and the mask the same
  Case c = MaskCase(0.3);
  const IndexSet apart = PositionsOf(IndexSet::Interval(0, 400), Striped(400, 6)[1]);
  for (const IndexSet& keys : {c.k_positions, IndexSet::Interval(1003, 1064), apart.Slice(0, 61)}) {
    c.k_positions = keys;
    c.q_positions = IndexSet::Interval(7, 27).Union(IndexSet::Interval(1000, 1050));
    for (const Parts& parts : {Contiguous(61, 1), Striped(61, 3), Zigzag(61, 7)}) {
      const AttentionDoubles results = ResultsOf<TypeParam>(c, MaskInputs(c), parts);
      for (size_t at = 0; at < results.o.size(); ++at) {
        const auto x = static_cast<int64_t>(at), row = x / c.dim;
        const bool kept = DropoutFactor(c.dropout, row / (c.q_heads * c.s), row % c.q_heads,
                                        c.q_positions.At(row / c.q_heads % c.s),
                                        c.k_positions.At(x % c.dim)) != 0;
        ASSERT_EQ(results.o[at] != 0, kept) << at;
      }
    }
  }
}

TEST(AttentionDropoutMaskTest, EveryInstructionSetDropsTheSame) {
  const int64_t supported = hwy::SupportedTargets();
  const Case c = MaskCase(0.3);
  const Case any =
      Dropped({.s = 70, .t = 150, .q_heads = 2, .dim = 20}, 0.2, AttentionMask::Causal());
  const AttentionInputs in = RandomInputs<float>(any);
  const AttentionReference expected = ReferenceAttention(any.Problem(), in);
  const Doubles first = ResultsOf<float>(c, MaskInputs(c), Zigzag(61, 3)).o;
  for (int64_t left = supported; left != 0; left &= left - 1) {
    SCOPED_TRACE(hwy::TargetName(left & -left));
    hwy::GetChosenTarget().Update(left & -left);
    const Doubles o = ResultsOf<float>(c, MaskInputs(c), Zigzag(61, 3)).o;
    for (size_t i = 0; i < o.size(); ++i) ASSERT_EQ(o[i] != 0, first[i] != 0) << i;
    ExpectClose(ResultsOf<float>(any, in, Striped(150, 2)), expected, kLimit<float>);
    ExpectClose(ResultsOf<double>(any, in, Striped(150, 2)), expected, kLimit<double>);
  }
  hwy::GetChosenTarget().Update(supported);
}

TEST(AttentionDropoutMaskTest, KeepsItsShareOfTheWeights) {
  for (const double rate : {0.1, 0.5, 0.9}) {
    const Case c = MaskCase(rate, 600);
    const AttentionDoubles results = ResultsOf<float>(c, MaskInputs(c), Contiguous(61, 1));
    const auto n = static_cast<double>(results.o.size());
    const double kept =
        n - static_cast<double>(std::count(results.o.begin(), results.o.end(), 0.0));
    EXPECT_NEAR(kept / n, 1 - rate, 4 * std::sqrt(rate * (1 - rate) / n));
    Case other = c;
    ++other.dropout.seed;
    EXPECT_NE(ResultsOf<float>(other, MaskInputs(c), Contiguous(61, 1)).o, results.o);
  }
}

// d sum(o do) / dx by central differences.
TEST(AttentionDropoutMaskTest, GradientsAreThoseOfTheDroppedSum) {
  const Case c = Dropped({.batch = 1, .s = 19, .t = 19, .q_heads = 4, .kv_heads = 2, .dim = 6}, 0.4,
                         AttentionMask::Causal());
  AttentionInputs in = RandomInputs<double>(c);
  const Parts parts = Contiguous(c.t, 2);
  const AttentionDoubles results = ResultsOf<double>(c, in, parts);
  const auto loss = [&] {
    const AttentionDoubles r = ResultsOf<double>(c, in, parts);
    double sum = 0;
    for (size_t i = 0; i < r.o.size(); ++i) sum += r.o[i] * in.dout[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  const std::pair<Doubles*, const Doubles*> operands[] = {
      {&in.q, &results.dq}, {&in.k, &results.dk}, {&in.v, &results.dv}};
  for (const auto& [x, gradient] : operands) {
    for (size_t i = 0; i < x->size(); i += 17) {
      const double at = (*x)[i];
      (*x)[i] = at + kStep;
      const double above = loss();
      (*x)[i] = at - kStep;
      const double below = loss();
      (*x)[i] = at;
      EXPECT_NEAR((above - below) / (2 * kStep), (*gradient)[i], 1e-8) << i;
    }
  }
}

TEST(AttentionDropoutMaskTest, ARateOfZeroChangesNoBit) {
  Case c = WithPositions({.s = 100, .t = 100, .q_heads = 2, .dim = 32}, AttentionMask::Causal());
  const AttentionInputs in = RandomInputs<float>(c);
  const AttentionDoubles none = ResultsOf<float>(c, in, Contiguous(c.t, 2));
  c.dropout.seed = 7;
  ExpectSameBits(ResultsOf<float>(c, in, Contiguous(c.t, 2)), none);
  c.dropout = DropoutOf(c, 1e-12);  // a draw of 24 bits that is 0
  const AttentionDoubles hardly = ResultsOf<float>(c, in, Contiguous(c.t, 2));
  EXPECT_LE(RelativeRms(hardly.o, none.o), 1e-6);
  EXPECT_EQ(hardly.lse, none.lse);
}

}  // namespace
}  // namespace dtensor::kernels
