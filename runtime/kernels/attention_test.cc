#include "dtensor/runtime/kernels/attention.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace dtensor::kernels {
namespace {

// The order of dimensions in memory, outermost first; tensors are seen as [b, s, h, d] all the
// same.
enum class Memory { kBatchSeqHead, kBatchHeadSeq, kSeqBatchHead };

struct Case {
  int64_t batch = 1, s = 1, t = 1, q_heads = 1, kv_heads = 1, dim = 16;
  bool causal = false;
  Memory memory = Memory::kBatchSeqHead;
  double scale = 0;  // 0: 1 / sqrt(dim)

  double Scale() const { return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(dim)); }
  Dims QShape() const { return {batch, s, q_heads, dim}; }
  Dims KShape() const { return {batch, t, kv_heads, dim}; }
};

std::string ToString(const Case& c) {
  return absl::StrCat("b ", c.batch, ", s ", c.s, ", t ", c.t, ", heads ", c.q_heads, "/",
                      c.kv_heads, ", d ", c.dim, c.causal ? ", causal" : "", ", memory ",
                      static_cast<int>(c.memory), ", scale ", c.scale);
}

// Row-major values of the five results, in f64.
struct Results {
  std::vector<double> o, lse, dq, dk, dv;
};

// Row-major inputs, rounded to the type under test.
struct Inputs {
  std::vector<double> q, k, v, dout;
};

template <typename T>
std::vector<double> Random(absl::Span<const int64_t> shape, uint32_t seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(NumElements(shape));
  for (double& x : values) {
    if constexpr (std::is_floating_point_v<T>) {
      x = static_cast<T>(normal(bits));
    } else {
      x = static_cast<float>(T(static_cast<float>(normal(bits))));
    }
  }
  return values;
}

template <typename T>
Inputs RandomInputs(const Case& c) {
  return {Random<T>(c.QShape(), 1), Random<T>(c.KShape(), 2), Random<T>(c.KShape(), 3),
          Random<T>(c.QShape(), 4)};
}

// The formulas of the header, one element at a time.
Results Naive(const Case& c, const Inputs& in) {
  Results out;
  out.o.assign(in.q.size(), 0);
  out.lse.assign(c.batch * c.q_heads * c.s, -std::numeric_limits<double>::infinity());
  out.dq.assign(in.q.size(), 0);
  out.dk.assign(in.k.size(), 0);
  out.dv.assign(in.v.size(), 0);
  std::vector<double> p(c.t);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      const int64_t kv = h / (c.q_heads / c.kv_heads);
      for (int64_t i = 0; i < c.s; ++i) {
        const int64_t row = ((b * c.s + i) * c.q_heads + h) * c.dim;
        const int64_t seen = c.causal ? std::clamp<int64_t>(i + c.t - c.s + 1, 0, c.t) : c.t;
        if (seen == 0) continue;
        const auto key = [&](int64_t j) { return ((b * c.t + j) * c.kv_heads + kv) * c.dim; };
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        for (int64_t j = 0; j < seen; ++j) {
          p[j] = 0;
          for (int64_t x = 0; x < c.dim; ++x) p[j] += in.q[row + x] * in.k[key(j) + x];
          p[j] *= c.Scale();
          largest = std::max(largest, p[j]);
        }
        for (int64_t j = 0; j < seen; ++j) sum += p[j] = std::exp(p[j] - largest);
        out.lse[(b * c.q_heads + h) * c.s + i] = largest + std::log(sum);
        for (int64_t j = 0; j < seen; ++j) {
          p[j] /= sum;
          for (int64_t x = 0; x < c.dim; ++x) out.o[row + x] += p[j] * in.v[key(j) + x];
        }
        for (int64_t x = 0; x < c.dim; ++x) delta += in.dout[row + x] * out.o[row + x];
        for (int64_t j = 0; j < seen; ++j) {
          double ds = -delta;
          for (int64_t x = 0; x < c.dim; ++x) ds += in.dout[row + x] * in.v[key(j) + x];
          ds *= p[j] * c.Scale();
          for (int64_t x = 0; x < c.dim; ++x) {
            out.dq[row + x] += ds * in.k[key(j) + x];
            out.dk[key(j) + x] += ds * in.q[row + x];
            out.dv[key(j) + x] += p[j] * in.dout[row + x];
          }
        }
      }
    }
  }
  return out;
}

Dims Strides(Memory memory, const Dims& shape) {
  const int64_t b = shape[0], s = shape[1], h = shape[2], d = shape[3];
  switch (memory) {
    case Memory::kBatchHeadSeq:
      return {h * s * d, d, s * d, 1};
    case Memory::kSeqBatchHead:
      return {h * d, b * h * d, d, 1};
    default:
      return {s * h * d, h * d, d, 1};
  }
}

// A [b, s, h, d] tensor in that order of memory, filled with `fill`.
template <typename T>
absl::StatusOr<Tensor> Filled(Device& device, const Dims& shape, Memory memory, double fill) {
  const std::vector<T> values(NumElements(shape), T(static_cast<float>(fill)));
  DT_ASSIGN_OR_RETURN(Tensor flat, FromHost<T>(device, values, {NumElements(shape)}));
  return flat.View(shape, Strides(memory, shape), 0);
}

template <typename T>
absl::StatusOr<Tensor> FromValues(Device& device, const Dims& shape, Memory memory,
                                  const std::vector<double>& values) {
  const Dims strides = Strides(memory, shape);
  std::vector<T> in_memory(values.size());
  size_t next = 0;
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t s = 0; s < shape[1]; ++s) {
      for (int64_t h = 0; h < shape[2]; ++h) {
        for (int64_t d = 0; d < shape[3]; ++d) {
          T& x = in_memory[b * strides[0] + s * strides[1] + h * strides[2] + d];
          if constexpr (std::is_floating_point_v<T>) {
            x = static_cast<T>(values[next++]);
          } else {
            x = T(static_cast<float>(values[next++]));
          }
        }
      }
    }
  }
  DT_ASSIGN_OR_RETURN(Tensor flat, FromHost<T>(device, in_memory, {NumElements(shape)}));
  return flat.View(shape, strides, 0);
}

template <typename T>
absl::StatusOr<std::vector<double>> ToDoubles(const Tensor& tensor) {
  DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToHost<T>(tensor));
  std::vector<double> doubles;
  for (const T& x : values) {
    if constexpr (std::is_floating_point_v<T>) {
      doubles.push_back(x);
    } else {
      doubles.push_back(static_cast<float>(x));
    }
  }
  return doubles;
}

template <typename T>
using Stats = std::conditional_t<std::is_same_v<T, double>, double, float>;

// The kernels' results, whose memory held NaN before.
template <typename T>
absl::StatusOr<Results> RunBoth(Device& device, const Case& c, const Inputs& in) {
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
  Results out;
  DT_ASSIGN_OR_RETURN(out.o, ToDoubles<T>(o));
  DT_ASSIGN_OR_RETURN(out.lse, ToDoubles<Stats<T>>(lse));
  DT_ASSIGN_OR_RETURN(out.dq, ToDoubles<T>(dq));
  DT_ASSIGN_OR_RETURN(out.dk, ToDoubles<T>(dk));
  DT_ASSIGN_OR_RETURN(out.dv, ToDoubles<T>(dv));
  return out;
}

// sqrt(sum (x - y)^2 / sum y^2), over the elements where y is finite; the others must be equal.
// Infinite where x is NaN. Gradients that cancel (of a single key) are compared with 1 instead.
double RelativeRms(const std::vector<double>& x, const std::vector<double>& y) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (x.size() != y.size()) return kInf;
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(y[i])) {
      error += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    } else if (x[i] != y[i]) {
      return kInf;
    }
  }
  if (std::isnan(error)) return kInf;
  if (error == 0) return 0;
  const double size = static_cast<double>(x.size());
  return std::sqrt(error / (norm > 1e-24 * size ? norm : size));
}

struct Limit {
  double forward, lse, backward;
};
template <typename T>
constexpr Limit kLimit = {3e-6, 3e-6, 3e-6};
template <>
constexpr Limit kLimit<double> = {1e-13, 1e-13, 1e-13};
// Each result is rounded once; gradients see o after rounding, too.
template <>
constexpr Limit kLimit<BFloat16> = {3e-3, 3e-6, 1e-2};
template <>
constexpr Limit kLimit<Float16> = {4e-4, 3e-6, 1.3e-3};

void ExpectClose(const Results& out, const Results& expected, const Limit& limit) {
  EXPECT_LE(RelativeRms(out.o, expected.o), limit.forward);
  EXPECT_LE(RelativeRms(out.lse, expected.lse), limit.lse);
  EXPECT_LE(RelativeRms(out.dq, expected.dq), limit.backward);
  EXPECT_LE(RelativeRms(out.dk, expected.dk), limit.backward);
  EXPECT_LE(RelativeRms(out.dv, expected.dv), limit.backward);
}

void ExpectSameBits(const Results& a, const Results& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

template <typename T>
void Check(const Case& c) {
  SCOPED_TRACE(ToString(c));
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Inputs in = RandomInputs<T>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Results out, RunBoth<T>(*device, c, in));
  ExpectClose(out, Naive(c, in), kLimit<T>);
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
  for (const int64_t dim : {1, 8, 20, 31, 33, 48, 64, 100, 128}) {
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

TYPED_TEST(AttentionTest, Empty) {
  Check<TypeParam>({.batch = 0, .s = 5, .t = 5});
  Check<TypeParam>({.s = 0, .t = 5});
  Check<TypeParam>({.s = 5, .t = 0, .q_heads = 4, .kv_heads = 2});
  Check<TypeParam>({.s = 5, .t = 0, .dim = 20, .causal = true});
  Check<TypeParam>({.s = 0, .t = 0});
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Case no_heads = {.s = 5, .t = 5, .q_heads = 0, .kv_heads = 0};
  DT_EXPECT_OK(RunBoth<TypeParam>(*device, no_heads, RandomInputs<TypeParam>(no_heads)));
}

// Scores far apart: most probabilities underflow.
TYPED_TEST(AttentionTest, LargeScores) {
  const Case c = {.s = 40, .t = 600, .dim = 64, .causal = true, .scale = 20};
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Inputs in = RandomInputs<TypeParam>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Results out, RunBoth<TypeParam>(*device, c, in));
  // A score's error, in units of the score, is its probability's relative error.
  const Limit limit = kLimit<TypeParam>;
  ExpectClose(out, Naive(c, in), {500 * limit.forward, limit.lse, 500 * limit.backward});
}

TEST(Attention, GradientsAreFiniteDifferences) {
  const Case c = {
      .batch = 2, .s = 5, .t = 6, .q_heads = 2, .kv_heads = 1, .dim = 3, .causal = true};
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Inputs in = RandomInputs<double>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Results at, RunBoth<double>(*device, c, in));
  constexpr double kStep = 1e-5;
  for (const auto& [input, gradient] : {std::pair(&Inputs::q, &Results::dq),
                                        {&Inputs::k, &Results::dk},
                                        {&Inputs::v, &Results::dv}}) {
    std::vector<double> slopes;
    for (size_t i = 0; i < (in.*input).size(); ++i) {
      double change = 0;
      for (const double step : {kStep, -kStep}) {
        Inputs moved = in;
        (moved.*input)[i] += step;
        DT_ASSERT_OK_AND_ASSIGN(const Results out, RunBoth<double>(*device, c, moved));
        for (size_t j = 0; j < out.o.size(); ++j) change += out.o[j] * in.dout[j] * step;
      }
      slopes.push_back(change / (2 * kStep * kStep));
    }
    EXPECT_LE(RelativeRms(at.*gradient, slopes), 1e-8);
  }
}

TEST(Attention, NanIsKept) {
  const Case c = {.s = 20, .t = 20};
  const std::unique_ptr<Device> device = MakeCpuDevice();
  Inputs in = RandomInputs<float>(c);
  in.q[3 * c.dim] = std::numeric_limits<double>::quiet_NaN();
  DT_ASSERT_OK_AND_ASSIGN(const Results out, RunBoth<float>(*device, c, in));
  for (int64_t i = 0; i < c.s; ++i) {
    EXPECT_EQ(std::isnan(out.o[i * c.dim]), i == 3) << i;
    EXPECT_EQ(std::isnan(out.lse[i]), i == 3) << i;
  }
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
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const Inputs in = RandomInputs<float>(c);
  DT_ASSERT_OK_AND_ASSIGN(const Results out, RunBoth<float>(*device, c, in));
  DT_ASSERT_OK_AND_ASSIGN(const Results again, RunBoth<float>(*device, c, in));
  ExpectSameBits(again, out);
  c.memory = Memory::kBatchHeadSeq;
  DT_ASSERT_OK_AND_ASSIGN(const Results transposed, RunBoth<float>(*device, c, in));
  ExpectSameBits(transposed, out);
  const std::unique_ptr<Device> deferred = MakeDeferredDevice();
  DT_ASSERT_OK_AND_ASSIGN(const Results later, RunBoth<float>(*deferred, c, in));
  ExpectSameBits(later, out);

  // The second half of the heads alone.
  const auto half = [&](const std::vector<double>& x, int64_t heads) {
    const int64_t width = heads * c.dim;
    std::vector<double> part;
    for (size_t row = 0; row < x.size(); row += width) {
      part.insert(part.end(), x.begin() + row + width / 2, x.begin() + row + width);
    }
    return part;
  };
  const Inputs half_in = {half(in.q, 4), half(in.k, 2), half(in.v, 2), half(in.dout, 4)};
  c.q_heads /= 2;
  c.kv_heads /= 2;
  DT_ASSERT_OK_AND_ASSIGN(const Results half_out, RunBoth<float>(*device, c, half_in));
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
