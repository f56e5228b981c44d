// For tests of the attention kernels: problems, tensors in any order of memory, and limits.
#ifndef DTENSOR_RUNTIME_TESTING_ATTENTION_CASE_H_
#define DTENSOR_RUNTIME_TESTING_ATTENTION_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/reference_attention.h"
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
  AttentionStep Step() const {
    AttentionStep step = WholeAttention(Scale(), causal, s, t);
    step.dropout = dropout;
    if (k_positions.empty()) return step;
    step.mask = mask;
    step.q_positions = q_positions;
    step.k_positions = k_positions;
    return step;
  }
  ReferenceProblem Problem() const {
    ReferenceProblem problem = {batch,       q_heads, kv_heads, dim,    q_positions,
                                k_positions, mask,    Scale(),  dropout};
    if (!k_positions.empty()) return problem;
    // Query i sees the keys j <= i + t - s.
    const int64_t of_query = std::max<int64_t>(t - s, 0), of_key = std::max<int64_t>(s - t, 0);
    problem.q_positions = IndexSet::Interval(of_query, of_query + s);
    problem.k_positions = IndexSet::Interval(of_key, of_key + t);
    problem.mask = causal ? AttentionMask::Causal() : AttentionMask::Full();
    return problem;
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

template <typename T>
inline constexpr DType kTypeOf = DType::kF32;
template <>
inline constexpr DType kTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType kTypeOf<Float16> = DType::kF16;

template <typename T>
using Stats = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Rounded to the type under test.
template <typename T>
AttentionInputs RandomInputs(const Case& c) {
  const int64_t queries = NumElements(c.QShape()), keys = NumElements(c.KShape());
  return {RandomNormal(queries, kTypeOf<T>, 1), RandomNormal(keys, kTypeOf<T>, 2),
          RandomNormal(keys, kTypeOf<T>, 3), RandomNormal(queries, kTypeOf<T>, 4)};
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
  const int64_t n = NumElements(shape);
  DT_ASSIGN_OR_RETURN(const Tensor flat, FromDoubles(device, kTypeOf<T>, Doubles(n, fill), {n}));
  return flat.View(shape, Strides(memory, shape), 0);
}

template <typename T>
absl::StatusOr<Tensor> FromValues(Device& device, const Dims& shape, Memory memory,
                                  const Doubles& values) {
  const Dims strides = Strides(memory, shape);
  Doubles in_memory(values.size());
  size_t next = 0;
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t s = 0; s < shape[1]; ++s) {
      for (int64_t h = 0; h < shape[2]; ++h) {
        double* row = in_memory.data() + b * strides[0] + s * strides[1] + h * strides[2];
        for (int64_t d = 0; d < shape[3]; ++d) row[d] = values[next++];
      }
    }
  }
  DT_ASSIGN_OR_RETURN(const Tensor flat,
                      FromDoubles(device, kTypeOf<T>, in_memory, {NumElements(shape)}));
  return flat.View(shape, strides, 0);
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

// Inputs of size 1: so are the terms of all results.
inline void ExpectClose(const AttentionDoubles& out, const AttentionReference& expected,
                        const Limit& limit) {
  const double limits[] = {limit.forward, limit.lse, limit.backward, limit.backward,
                           limit.backward};
  const auto errors = RelativeErrors(out, expected, {1, 1, 1, 1, 1});
  for (size_t i = 0; i < errors.size(); ++i) {
    EXPECT_LE(errors[i], limits[i]) << kAttentionValues[i];
  }
}

inline void ExpectSameBits(const AttentionDoubles& a, const AttentionDoubles& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_ATTENTION_CASE_H_
