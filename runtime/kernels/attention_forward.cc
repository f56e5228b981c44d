#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/attention_block.h"
#include "dtensor/runtime/kernels/attention_scratch.h"
#include "dtensor/runtime/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dtensor/runtime/kernels/attention_forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/attention_panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// --- Forward.

// Scores of M rows against one panel of keys, and the rows' largest so far.
template <int M, int N, typename T>
HWY_INLINE void ScoreTile(const T* query, const T* keys_t, int64_t dim, const Limits& limits,
                          int64_t key, T* scores, T* row_max) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  VecOf<T> acc[M][N];
  MultiplyRows(query, M * P, keys_t, dim, acc);
  if (limits.row[0] < key + N * L) MaskTile(limits, key, hn::Neg(hn::Inf(d)), acc);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    auto largest = hn::Load(d, row_max + i * L);
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      largest = hn::Max(largest, acc[i][j]);
      hn::Store(acc[i][j], d, scores + i * P + j * L);
    }
    hn::Store(largest, d, row_max + i * L);
  }
}

// One strip of M rows against one block of keys. query: scaled so that 2^score is wanted. first:
// nothing is carried yet. last: the row's results are final, divided by the sum.
template <int M, typename T>
HWY_NOINLINE void ForwardStrip(const T* query, const T* keys_t, const T* values, int64_t block_keys,
                               int64_t dim, const Limits& limits, bool first, bool last, T* max,
                               T* sum, T* scores, T* out, int64_t row_stride, int64_t out_panel) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const int64_t n = limits.last;

  HWY_ALIGN T row_max[M * L];
  for (int64_t i = 0; i < M * L; i += L) hn::Store(hn::Set(d, -kInf), d, row_max + i);
  for (int64_t key = 0; key < n; key += P) {
    if (n - key > L) {
      ScoreTile<M, 2>(query, keys_t + key * dim, dim, limits, key, scores + key * M, row_max);
    } else {
      ScoreTile<M, 1>(query, keys_t + key * dim, dim, limits, key, scores + key * M, row_max);
    }
  }

  T beta[M], gamma[M];
  for (int i = 0; i < M; ++i) {
    T top = hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, row_max + i * L)));
    if (!first) top = std::max(top, max[i]);
    const T shift = top == -kInf ? 0 : top;
    const auto shifts = hn::Set(d, shift);
    auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    int64_t key = 0;
    T* p = scores + i * P;
    for (; key + P <= n; key += P, p += M * P) {
      const auto p0 = Exp2(d, hn::Sub(hn::Load(d, p), shifts));
      const auto p1 = Exp2(d, hn::Sub(hn::Load(d, p + L), shifts));
      hn::Store(p0, d, p);
      hn::Store(p1, d, p + L);
      sum0 = hn::Add(sum0, p0);
      sum1 = hn::Add(sum1, p1);
    }
    for (; key < n; key += L, p += L) {
      const auto p0 = Exp2(d, hn::Sub(hn::Load(d, p), shifts));
      hn::Store(p0, d, p);
      sum0 = hn::Add(sum0, p0);
    }
    T total = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
    gamma[i] = 0;
    if (!first) {
      gamma[i] = Exp2Scalar(max[i] - shift);
      total += sum[i] * gamma[i];
    }
    max[i] = top;
    sum[i] = total;
    beta[i] = 1;
    if (last) {
      beta[i] = total == 0 ? 0 : 1 / total;
      gamma[i] *= beta[i];
    }
  }
  MultiplyStrip<M>(scores, M * P, values, block_keys, n, dim, beta, first ? nullptr : gamma, out,
                   row_stride, out_panel);
}

template <typename In, typename T>
void Forward(const AttentionShape& shape, const AttentionOperands& op, void* memory) {
  constexpr int64_t P = kPanel<T>;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const Blocks blocks = BlocksOf(shape, false);
  Scratch scratch(memory);
  const ForwardScratch<T> s(shape, blocks, scratch);
  const int64_t group = shape.q_heads / shape.kv_heads;
  const int64_t offset = shape.keys - shape.q_rows;
  const int64_t dim = shape.dim;
  const bool whole = std::is_same_v<In, T> && dim % kLanes<T> == 0;

  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      // A block even if there are no keys: it gives rows that see nothing their results.
      for (int64_t key = 0; key == 0 || key < shape.keys; key += blocks.keys) {
        const int64_t count = std::min(blocks.keys, shape.keys - key);
        const In* k = At<In>(op.k, b, kv) + key * op.k.row_stride;
        const In* v = At<In>(op.v, b, kv) + key * op.v.row_stride;
        PackTransposed(k, op.k.row_stride, count, dim, s.query, s.keys_t);
        Pack(v, op.v.row_stride, count, 0, dim, T{1}, blocks.keys, s.values);
        // Earlier rows see none of these keys.
        const int64_t begin = shape.causal && key > 0 ? std::max<int64_t>(0, key - offset) : 0;
        for (int64_t h = 0; h < group; ++h) {
          const int64_t head = kv * group + h;
          const In* q = At<In>(op.q, b, head);
          In* o = At<In>(op.o, b, head);
          T* lse = At<T>(op.lse, b, head);
          ForEachStrip(shape.q_rows - begin, [&](auto m, int64_t strip, int64_t rows) HWY_ATTR {
            constexpr int M = decltype(m)::value;
            const int64_t row = begin + strip;
            const Limits limits = LimitsOf<M>(shape.causal, row, rows, offset, key, count);
            // Whether no row of the strip sees a key of a later block.
            const int64_t end = key + count;
            const bool last = end == shape.keys || (shape.causal && row + rows - 1 + offset < end);
            const bool first = key == 0;
            T* max = s.max + h * shape.q_rows + row;
            T* sum = s.sum + h * shape.q_rows + row;
            // A padded strip's statistics do not fit between those of its neighbours.
            T max_copy[M], sum_copy[M];
            std::copy_n(max, first ? 0 : rows, max_copy);
            std::copy_n(sum, first ? 0 : rows, sum_copy);
            std::fill(max_copy + (first ? 0 : rows), max_copy + M, T{0});
            std::fill(sum_copy + (first ? 0 : rows), sum_copy + M, T{0});

            Pack(q + row * op.q.row_stride, op.q.row_stride, rows, M - rows, dim,
                 static_cast<T>(shape.scale * kLog2E), M, s.query);
            // o holds what is carried where it can.
            T* carry = nullptr;
            int64_t carry_stride = dim;
            if constexpr (std::is_same_v<In, T>) {
              carry = o + row * op.o.row_stride;
              carry_stride = op.o.row_stride;
            } else if (s.carry != nullptr) {
              carry = s.carry + (h * shape.q_rows + row) * dim;
            }
            if (whole && rows == M) {
              ForwardStrip<M>(s.query, s.keys_t, s.values, blocks.keys, dim, limits, first, last,
                              max_copy, sum_copy, s.scores, carry, carry_stride, P);
            } else {
              if (!first) Pack(carry, carry_stride, rows, M - rows, dim, T{1}, M, s.out);
              ForwardStrip<M>(s.query, s.keys_t, s.values, blocks.keys, dim, limits, first, last,
                              max_copy, sum_copy, s.scores, s.out, P, M * P);
              if (last) {
                Unpack(s.out, M, rows, dim, T{1}, o + row * op.o.row_stride, op.o.row_stride);
              } else {
                Unpack(s.out, M, rows, dim, T{1}, carry, carry_stride);
              }
            }
            if (last) {
              for (int64_t i = 0; i < rows; ++i) {
                lse[(row + i) * op.lse.row_stride] =
                    sum_copy[i] == 0
                        ? -kInf
                        : static_cast<T>((max_copy[i] + std::log2(sum_copy[i])) * T{kLn2});
              }
            }
            std::copy_n(max_copy, rows, max);
            std::copy_n(sum_copy, rows, sum);
          });
        }
      }
    }
  }
}


}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
