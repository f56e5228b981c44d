#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/attention_block.h"
#include "dtensor/runtime/kernels/attention_scratch.h"
#include "dtensor/runtime/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dtensor/runtime/kernels/attention_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/attention_panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// --- Backward.

// P = 2^(score - lse) and dS = P * (dO V^T - delta) of M rows against one panel of keys.
template <int M, int N, typename T>
HWY_INLINE void GradTile(const T* query, const T* dout, int64_t a_panel, const T* keys_t,
                         const T* values_t, int64_t dim, const Limits& limits, int64_t key,
                         const T* lse, const T* delta, T* p, T* ds) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  VecOf<T> acc[M][N];
  MultiplyRows(query, a_panel, keys_t, dim, acc);
  if (limits.row[0] < key + N * L) MaskTile(limits, key, hn::Neg(hn::Inf(d)), acc);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      hn::Store(Exp2(d, hn::Sub(acc[i][j], hn::Set(d, lse[i]))), d, p + i * P + j * L);
    }
    if (N == 1) hn::Store(hn::Zero(d), d, p + i * P + L);
  }
  MultiplyRows(dout, a_panel, values_t, dim, acc);
  // P is 0 where the key is hidden, but spare columns of values_t may hold anything.
  if (limits.row[0] < key + N * L) MaskTile(limits, key, hn::Zero(d), acc);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      const auto pv = hn::Load(d, p + i * P + j * L);
      hn::Store(hn::Mul(pv, hn::Sub(acc[i][j], hn::Set(d, delta[i]))), d, ds + i * P + j * L);
    }
    if (N == 1) hn::Store(hn::Zero(d), d, ds + i * P + L);
  }
}

// One strip of M rows, at row `r` of a block of rows, against one block of keys: P, dS and dQ.
template <int M, typename T>
HWY_NOINLINE void GradStrip(const GradScratch<T>& s, const Blocks& blocks, int64_t r, int64_t dim,
                            T scale, const Limits& limits, bool first, const T* lse, const T* delta,
                            T* dq, int64_t row_stride, int64_t dq_panel) {
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  const int64_t n = limits.last;
  const int64_t panel = blocks.rows * P;
  for (int64_t key = 0; key < n; key += P) {
    T* p = s.p + (key / P * blocks.rows + r) * P;
    T* ds = s.ds + (key / P * blocks.rows + r) * P;
    const T* query = s.query + r * P;
    const T* dout = s.dout + r * P;
    const T* keys_t = s.keys_t + key * dim;
    const T* values_t = s.values_t + key * dim;
    if (n - key > L) {
      GradTile<M, 2>(query, dout, panel, keys_t, values_t, dim, limits, key, lse, delta, p, ds);
    } else {
      GradTile<M, 1>(query, dout, panel, keys_t, values_t, dim, limits, key, lse, delta, p, ds);
    }
  }
  T beta[M], gamma[M];
  std::fill_n(beta, M, scale);
  std::fill_n(gamma, M, T{1});
  MultiplyStrip<M>(s.ds + r * P, panel, s.keys, blocks.keys, n, dim, beta, first ? nullptr : gamma,
                   dq, row_stride, dq_panel);
}

// c += A^T B for M columns of A, at `a` in a panel, over n rows; B in panels of `b_rows` rows.
template <int M, typename T>
HWY_NOINLINE void MultiplyColumns(const T* a, const T* b, int64_t b_rows, int64_t n, int64_t dim,
                                  T* c, int64_t c_panel) {
  constexpr int64_t P = kPanel<T>;
  T ones[M];
  std::fill_n(ones, M, T{1});
  for (; dim > 0; dim -= P, b += b_rows * P, c += c_panel) {
    if (dim > kLanes<T>) {
      VecOf<T> acc[M][2];
      Clear(acc);
      Accumulate<M, 2, 1, P>(a, b, n, acc);
      WriteTile(acc, ones, ones, c, P);
    } else {
      VecOf<T> acc[M][1];
      Clear(acc);
      Accumulate<M, 1, 1, P>(a, b, n, acc);
      WriteTile(acc, ones, ones, c, P);
    }
  }
}

// lse in the unit of the scores (log2), and rowsum(dout * o), for the rows of one head.
template <typename In, typename T>
void RowStatistics(const AttentionShape& shape, const AttentionOperands& op, int64_t b,
                   int64_t head, T* lse2, T* delta) {
  const hn::ScalableTag<T> d;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const In* o = At<In>(op.o, b, head);
  const In* dout = At<In>(op.dout, b, head);
  const T* lse = At<T>(op.lse, b, head);
  for (int64_t r = 0; r < shape.q_rows; ++r) {
    const T x = lse[r * op.lse.row_stride];
    lse2[r] = x == -kInf ? kInf : x * static_cast<T>(kLog2E);  // a row that saw nothing: P = 0
    const In* o_row = o + r * op.o.row_stride;
    const In* dout_row = dout + r * op.dout.row_stride;
    delta[r] = SumVectors(d, shape.dim, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      return hn::Mul(Load(d, o_row + i, lanes), Load(d, dout_row + i, lanes));
    });
  }
}

template <typename In, typename T>
void Backward(const AttentionShape& shape, const AttentionOperands& op, void* memory) {
  constexpr int64_t P = kPanel<T>;
  const Blocks blocks = BlocksOf(shape, true);
  Scratch scratch(memory);
  const GradScratch<T> s(shape, blocks, scratch);
  const int64_t group = shape.q_heads / shape.kv_heads;
  const int64_t offset = shape.keys - shape.q_rows;
  const int64_t dim = shape.dim;
  const T scale = static_cast<T>(shape.scale);
  const bool whole = dim % kLanes<T> == 0;

  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      for (int64_t h = 0; h < group; ++h) {
        RowStatistics<In>(shape, op, b, kv * group + h, s.lse + h * shape.q_rows,
                          s.delta + h * shape.q_rows);
      }
      for (int64_t key = 0; key == 0 || key < shape.keys; key += blocks.keys) {
        const bool first = key == 0;
        const int64_t count = std::min(blocks.keys, shape.keys - key);
        const In* k = At<In>(op.k, b, kv) + key * op.k.row_stride;
        const In* v = At<In>(op.v, b, kv) + key * op.v.row_stride;
        Pack(k, op.k.row_stride, count, 0, dim, T{1}, blocks.keys, s.keys);
        PackTransposed(k, op.k.row_stride, count, dim, s.query, s.keys_t);
        PackTransposed(v, op.v.row_stride, count, dim, s.query, s.values_t);
        std::fill_n(s.dkeys, blocks.keys * blocks.dim, T{0});
        std::fill_n(s.dvalues, blocks.keys * blocks.dim, T{0});
        const int64_t begin = shape.causal && !first ? std::max<int64_t>(0, key - offset) : 0;
        for (int64_t h = 0; h < group; ++h) {
          const int64_t head = kv * group + h;
          for (int64_t row = begin; row < shape.q_rows; row += blocks.rows) {
            const int64_t rows = std::min(blocks.rows, shape.q_rows - row);
            const int64_t spare = RoundUp(rows, kStep) - rows;
            const In* q = At<In>(op.q, b, head) + row * op.q.row_stride;
            const In* dout = At<In>(op.dout, b, head) + row * op.dout.row_stride;
            Pack(q, op.q.row_stride, rows, spare, dim, static_cast<T>(shape.scale * kLog2E),
                 blocks.rows, s.query);
            Pack(dout, op.dout.row_stride, rows, spare, dim, T{1}, blocks.rows, s.dout);
            ForEachStrip(rows, [&](auto m, int64_t r, int64_t strip_rows) HWY_ATTR {
              constexpr int M = decltype(m)::value;
              const Limits limits =
                  LimitsOf<M>(shape.causal, row + r, strip_rows, offset, key, count);
              T lse[M], delta[M];
              for (int i = 0; i < M; ++i) {
                const int64_t at =
                    h * shape.q_rows + row + r + std::min<int64_t>(i, strip_rows - 1);
                lse[i] = s.lse[at];
                delta[i] = s.delta[at];
              }
              T* dq = nullptr;
              int64_t stride = dim;
              if constexpr (std::is_same_v<In, T>) {
                dq = At<T>(op.dq, b, head) + (row + r) * op.dq.row_stride;
                stride = op.dq.row_stride;
              } else {
                dq = s.carry + (h * shape.q_rows + row + r) * dim;
              }
              if (whole && strip_rows == M) {
                GradStrip<M>(s, blocks, r, dim, scale, limits, first, lse, delta, dq, stride, P);
              } else {
                if (!first) Pack(dq, stride, strip_rows, M - strip_rows, dim, T{1}, M, s.dquery);
                GradStrip<M>(s, blocks, r, dim, scale, limits, first, lse, delta, s.dquery, P,
                             M * P);
                Unpack(s.dquery, M, strip_rows, dim, T{1}, dq, stride);
              }
            });
            for (int64_t c = 0; c < count; c += P) {
              const T* p = s.p + c * blocks.rows;
              const T* ds = s.ds + c * blocks.rows;
              ForEachStrip(std::min(P, count - c), [&](auto m, int64_t i, int64_t) HWY_ATTR {
                constexpr int M = decltype(m)::value;
                // Earlier rows of the block see none of these M keys.
                const int64_t r =
                    shape.causal ? std::max<int64_t>(0, key + c + i - offset - row) : 0;
                if (r >= rows) return;
                MultiplyColumns<M>(p + r * P + i, s.dout + r * P, blocks.rows, rows - r, dim,
                                   s.dvalues + (c + i) * P, blocks.keys * P);
                MultiplyColumns<M>(ds + r * P + i, s.query + r * P, blocks.rows, rows - r, dim,
                                   s.dkeys + (c + i) * P, blocks.keys * P);
              });
            }
          }
        }
        In* dk = At<In>(op.dk, b, kv) + key * op.dk.row_stride;
        In* dv = At<In>(op.dv, b, kv) + key * op.dv.row_stride;
        // The packed queries hold the scale and log2(e).
        Unpack(s.dkeys, blocks.keys, count, dim, static_cast<T>(kLn2), dk, op.dk.row_stride);
        Unpack(s.dvalues, blocks.keys, count, dim, T{1}, dv, op.dv.row_stride);
      }
      if constexpr (!std::is_same_v<In, T>) {
        const hn::ScalableTag<T> d;
        for (int64_t h = 0; h < group; ++h) {
          for (int64_t r = 0; r < shape.q_rows; ++r) {
            const T* row = s.carry + (h * shape.q_rows + r) * dim;
            In* dq = At<In>(op.dq, b, kv * group + h) + r * op.dq.row_stride;
            ForEachVector(d, dim, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
              Store(Load(d, row + i, lanes), d, dq + i, lanes);
            });
          }
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
