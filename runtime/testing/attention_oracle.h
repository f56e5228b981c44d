// Inputs, an oracle in f64 and comparisons for tests of the attention kernels.
#ifndef DTENSOR_RUNTIME_TESTING_ATTENTION_ORACLE_H_
#define DTENSOR_RUNTIME_TESTING_ATTENTION_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/philox.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {

// The order of dimensions in memory, outermost first; tensors are seen as [b, s, h, d] all the
// same.
enum class Memory { kBatchSeqHead, kBatchHeadSeq, kSeqBatchHead };

struct Case {
  int64_t batch = 1, s = 1, t = 1, q_heads = 1, kv_heads = 1, dim = 16;
  bool causal = false;
  Memory memory = Memory::kBatchSeqHead;
  double scale = 0;  // 0: 1 / sqrt(dim)
  // With positions of the keys, `mask` says what is seen, not `causal`.
  AttentionMask mask;
  IndexSet q_positions, k_positions;
  AttentionDropout dropout;

  double Scale() const { return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(dim)); }
  bool Sees(int64_t i, int64_t j) const {
    if (k_positions.empty()) return !causal || j <= i + t - s;
    return mask.Allows(q_positions.At(i), k_positions.At(j));
  }
  // What the weight of a batch entry, a query head, a query and a key is multiplied by.
  double Factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (dropout.rate == 0) return 1;
    const AttentionStep step = Step();
    const auto u32 = [](uint64_t x) { return static_cast<uint32_t>(x); };
    const uint32_t key = u32(step.k_positions.At(j));
    const auto words = Philox({key / 4, u32(step.q_positions.At(i)), u32(dropout.heads.At(h)),
                               u32(dropout.batches.At(b))},
                              {u32(dropout.seed), u32(dropout.seed >> 32)});
    return (words[key % 4] >> 8) * 0x1p-24 >= dropout.rate ? 1 / (1 - dropout.rate) : 0;
  }
  AttentionStep Step() const {
    AttentionStep step = WholeAttention(Scale(), causal, s, t);
    step.dropout = dropout;
    if (k_positions.empty()) return step;
    step.mask = mask;
    step.q_positions = q_positions;
    step.k_positions = k_positions;
    return step;
  }
  Dims QShape() const { return {batch, s, q_heads, dim}; }
  Dims KShape() const { return {batch, t, kv_heads, dim}; }
};

inline std::string ToString(const Case& c) {
  return absl::StrCat(
      c.mask.ToString(), " of ", c.q_positions.ToString(), " x ", c.k_positions.ToString(), ", b ",
      c.batch, ", s ", c.s, ", t ", c.t, ", heads ", c.q_heads, "/", c.kv_heads, ", d ", c.dim,
      c.causal ? ", causal" : "", ", memory ", static_cast<int>(c.memory), ", scale ", c.scale);
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
inline Results Naive(const Case& c, const Inputs& in) {
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
        const auto key = [&](int64_t j) { return ((b * c.t + j) * c.kv_heads + kv) * c.dim; };
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        std::vector<int64_t> seen;
        for (int64_t j = 0; j < c.t; ++j) {
          if (!c.Sees(i, j)) continue;
          seen.push_back(j);
          p[j] = 0;
          for (int64_t x = 0; x < c.dim; ++x) p[j] += in.q[row + x] * in.k[key(j) + x];
          p[j] *= c.Scale();
          largest = std::max(largest, p[j]);
        }
        if (seen.empty()) continue;
        for (const int64_t j : seen) sum += p[j] = std::exp(p[j] - largest);
        out.lse[(b * c.q_heads + h) * c.s + i] = largest + std::log(sum);
        for (const int64_t j : seen) {
          p[j] /= sum;
          const double kept = p[j] * c.Factor(b, h, i, j);
          for (int64_t x = 0; x < c.dim; ++x) out.o[row + x] += kept * in.v[key(j) + x];
        }
        for (int64_t x = 0; x < c.dim; ++x) delta += in.dout[row + x] * out.o[row + x];
        for (const int64_t j : seen) {
          const double factor = c.Factor(b, h, i, j);
          double ds = -delta;
          for (int64_t x = 0; x < c.dim; ++x) ds += factor * in.dout[row + x] * in.v[key(j) + x];
          ds *= p[j] * c.Scale();
          for (int64_t x = 0; x < c.dim; ++x) {
            out.dq[row + x] += ds * in.k[key(j) + x];
            out.dk[key(j) + x] += ds * in.q[row + x];
            out.dv[key(j) + x] += factor * p[j] * in.dout[row + x];
          }
        }
      }
    }
  }
  return out;
}

inline Dims Strides(Memory memory, const Dims& shape) {
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

// sqrt(sum (x - y)^2 / sum y^2), over the elements where y is finite; the others must be equal.
// Infinite where x is NaN. Gradients that cancel (of a single key) are compared with 1 instead.
inline double RelativeRms(const std::vector<double>& x, const std::vector<double>& y) {
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
inline constexpr Limit kLimit = {3e-6, 3e-6, 3e-6};
template <>
inline constexpr Limit kLimit<double> = {1e-13, 1e-13, 1e-13};
// Each result is rounded once; gradients see o after rounding, too.
template <>
inline constexpr Limit kLimit<BFloat16> = {3e-3, 3e-6, 1e-2};
template <>
inline constexpr Limit kLimit<Float16> = {4e-4, 3e-6, 1.3e-3};

inline void ExpectClose(const Results& out, const Results& expected, const Limit& limit) {
  EXPECT_LE(RelativeRms(out.o, expected.o), limit.forward);
  EXPECT_LE(RelativeRms(out.lse, expected.lse), limit.lse);
  EXPECT_LE(RelativeRms(out.dq, expected.dq), limit.backward);
  EXPECT_LE(RelativeRms(out.dk, expected.dk), limit.backward);
  EXPECT_LE(RelativeRms(out.dv, expected.dv), limit.backward);
}

inline void ExpectSameBits(const Results& a, const Results& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_ATTENTION_ORACLE_H_
