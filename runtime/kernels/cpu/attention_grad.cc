#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention_grad.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/attention_dropout-inl.h"
#include "dtensor/runtime/kernels/cpu/attention_operands-inl.h"
#include "dtensor/runtime/kernels/cpu/attention_panels-inl.h"

#ifndef DTENSOR_RUNTIME_KERNELS_ATTENTION_GRAD_ONCE_
#define DTENSOR_RUNTIME_KERNELS_ATTENTION_GRAD_ONCE_
namespace dtensor::kernels {
namespace {

// Query rows of a block: a multiple of every strip size, and large enough that the sums over them,
// dK and dV, are seldom loaded and stored.
constexpr int64_t kBlockRows = 96;

// If dk and dv have at least this many bytes, they are written past the caches. Measured over whole
// rings: half of this neither gains nor loses, a quarter loses.
constexpr int64_t kStreamedGradients = 1 << 20;

// Two of a block's five matrices are half as large if they hold pairs of bf16.
AttentionBlocks GradBlocks(const AttentionShape& shape) {
  return BlocksOf(shape, shape.dtype == DType::kBF16 ? 24576 : 16384);
}

template <typename T>
struct GradScratch {
  AttentionBlocks blocks;
  T *keys, *values, *keys_t, *values_t;  // for one block of keys
  T *dkeys, *dvalues;                    // their gradients, summed over the group's rows
  T *query, *dout, *p, *ds;              // for one block of rows
  T *query_pairs, *dout_pairs;           // query and dout again, if pairs of bf16 are multiplied
  T* dquery;                             // for one strip of rows
  T *lse, *carry;  // for each row of a group; carry: dq, if dq's own memory cannot hold it
  DropoutScratch<T> dropout;

  GradScratch(const AttentionShape& shape, AttentionScratch& scratch)
      : blocks(GradBlocks(shape)), dropout(shape, blocks, scratch) {
    const int64_t rows = shape.q_rows * (shape.q_heads / std::max<int64_t>(1, shape.kv_heads));
    for (T** part : {&keys, &keys_t, &values_t, &dkeys, &dvalues}) {
      *part = scratch.Take<T>(blocks.keys * blocks.dim);
    }
    for (T** part : {&query, &dout}) *part = scratch.Take<T>(kBlockRows * blocks.dim);
    const int64_t pairs = shape.dtype == DType::kBF16 ? RoundUp(blocks.dim / 2, kAttentionPad) : 0;
    for (T** part : {&query_pairs, &dout_pairs}) *part = scratch.Take<T>(kBlockRows * pairs);
    for (T** part : {&p, &ds}) *part = scratch.Take<T>(kBlockRows * blocks.keys);
    dquery = scratch.Take<T>(kAttentionPad * blocks.dim);
    lse = scratch.Take<T>(rows);
    carry = scratch.Take<T>(SizeOf(shape.out_dtype) == sizeof(T) ? 0 : rows * shape.dim);
  }
};

}  // namespace
}  // namespace dtensor::kernels
#endif  // DTENSOR_RUNTIME_KERNELS_ATTENTION_GRAD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Computes P = 2^(score - lse) and dS = P * (dO V^T - delta) for M rows against one panel of keys.
// The scores of pairs are not scaled yet: `scale` is for them.
template <int M, int N, bool kPairs, typename T>
HWY_INLINE void GradTile(const T* query, const T* dout, int64_t a_panel, const T* keys_t,
                         const T* values_t, int64_t dim, T scale, const Limits& limits, int64_t key,
                         const T* lse, const T* delta, T* p, T* ds) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  VecOf<T> acc[M][N];
  MultiplyRows<kPairs>(query, a_panel, keys_t, dim, acc);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      const auto row_lse = hn::Set(d, lse[i]);
      acc[i][j] =
          kPairs ? hn::MulSub(acc[i][j], hn::Set(d, scale), row_lse) : hn::Sub(acc[i][j], row_lse);
    }
  }
  // Masks after scaling, since the scale may be negative.
  if (NeedsMask<M>(limits, key, N * L)) MaskTile(limits, key, hn::Neg(hn::Inf(d)), acc);
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) hn::Store(Exp2(d, acc[i][j]), d, p + i * P + j * L);
    if (N == 1) hn::Store(hn::Zero(d), d, p + i * P + L);
  }
  MultiplyRows<kPairs>(dout, a_panel, values_t, dim, acc);
  // P is 0 for a hidden key, but spare columns of values_t may hold anything, even NaN.
  if (NeedsMask<M>(limits, key, N * L)) MaskTile(limits, key, hn::Zero(d), acc);
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

// Computes P, dS and dQ of one strip of M rows, at row `r` of a block of rows, against one block of
// keys.
template <int M, bool kPairs, typename T>
HWY_NOINLINE void GradStrip(const GradScratch<T>& s, int64_t r, int64_t dim, T scale,
                            const Limits& limits, bool first, const T* lse, const T* delta,
                            const StripDropout<T>& dropout, RowsAhead& ahead, T* dq,
                            int64_t row_stride, int64_t dq_panel) {
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  const int64_t begin = limits.first, n = limits.last;
  const int64_t panel = kBlockRows * P;
  const T log2_scale = scale * static_cast<T>(kLog2E);
  for (int64_t key = begin; key < n; key += P) {
    ahead.FetchSome();
    T* p = s.p + (key / P * kBlockRows + r) * P;
    T* ds = s.ds + (key / P * kBlockRows + r) * P;
    const T* query = (kPairs ? s.query_pairs : s.query) + r * P;
    const T* dout = (kPairs ? s.dout_pairs : s.dout) + r * P;
    const T* keys_t = s.keys_t + key * (kPairs ? dim / 2 : dim);
    const T* values_t = s.values_t + key * (kPairs ? dim / 2 : dim);
    if (n - key > L) {
      GradTile<M, 2, kPairs>(query, dout, panel, keys_t, values_t, dim, log2_scale, limits, key,
                             lse, delta, p, ds);
    } else {
      GradTile<M, 1, kPairs>(query, dout, panel, keys_t, values_t, dim, log2_scale, limits, key,
                             lse, delta, p, ds);
    }
  }
  if (dropout.keys->active()) {
    DropGradients(dropout, begin, n, kBlockRows, delta, s.p + r * P, s.ds + r * P);
  }
  T beta[M], gamma[M];
  std::fill_n(beta, M, scale);
  std::fill_n(gamma, M, T{1});
  MultiplyStrip<M>(s.ds + begin * kBlockRows + r * P, panel, s.keys + begin * P, s.blocks.keys,
                   n - begin, dim, beta, first ? nullptr : gamma, dq, row_stride, dq_panel);
}

template <typename T>
class GradPass {
 public:
  GradPass(const AttentionShape& shape, const AttentionOperands& op, const Format<T>& format,
           const Format<T>& out_format, AttentionScratch& scratch)
      : shape_(shape),
        op_(op),
        format_(format),
        out_format_(out_format),
        scratch_(shape, scratch),
        dropout_(shape, scratch_.dropout),
        group_(shape.q_heads / shape.kv_heads),
        delta_(WideRows<T>::Of(op.delta, group_)),
        pairs_(CanTakePairs<T>(shape, {op.q, op.k, op.v, op.dout})) {
    dq_ = {scratch_.carry, 0, 0, shape.q_rows * shape.dim, shape.dim};
    if (out_format.same) dq_ = WideRows<T>::Of(op.dq, group_);
    stream_ = out_format.same && IsLarge() && IsWholeLines(op.dk) && IsWholeLines(op.dv);
  }

  void Run() {
    for (int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (int64_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) RunGroup(batch, kv_head);
    }
    FinishStores(stream_);
  }

 private:
  // The rows of one query head of a group.
  struct Head {
    int64_t batch, kv_head, in_group;
  };
  int64_t QueryHead(const Head& head) const { return head.kv_head * group_ + head.in_group; }

  // The packed keys of a block, [key, key + count), and the block's number.
  struct Keys {
    int64_t key, count, block;
  };

  // Whether dk and dv are too large to stay in the second-level cache until they are read.
  bool IsLarge() const {
    const int64_t bytes = 2 * shape_.batch * shape_.keys * shape_.kv_heads * shape_.dim * sizeof(T);
    return bytes >= kStreamedGradients;
  }
  bool IsWholeLines(const AttentionOperand& x) const {
    constexpr int64_t kLine = 64, n = kLine / static_cast<int64_t>(sizeof(T));
    return reinterpret_cast<uintptr_t>(x.data) % kLine == 0 && x.batch_stride % n == 0 &&
           x.head_stride % n == 0 && x.row_stride % n == 0 && shape_.dim % n == 0;
  }

  // Runs all query heads that share `kv_head`.
  void RunGroup(int64_t batch, int64_t kv_head) {
    for (int64_t h = 0; h < group_; ++h) ScaleLse({batch, kv_head, h});
    // Runs one block even if there are no keys: it sets dq of rows that see nothing to 0.
    for (int64_t key = 0; key == 0 || key < shape_.keys; key += scratch_.blocks.keys) {
      RunBlock({batch, kv_head, key});
    }
    if (out_format_.same) return;
    for (int64_t h = 0; h < group_; ++h) {
      void* const dq = out_format_.At(op_.dq, batch, kv_head * group_ + h, 0);
      out_format_.store(dq_.At(batch, kv_head, h, 0), shape_.q_rows, shape_.dim, dq,
                        op_.dq.row_stride);
    }
  }

  // Converts lse to the unit of the scores (log2).
  void ScaleLse(const Head& head) {
    const T* lse = WideRows<T>::Of(op_.lse, group_).At(head.batch, head.kv_head, head.in_group, 0);
    T* const out = scratch_.lse + head.in_group * shape_.q_rows;
    constexpr T kInf = std::numeric_limits<T>::infinity();
    for (int64_t i = 0; i < shape_.q_rows; ++i, lse += op_.lse.row_stride) {
      out[i] = *lse == -kInf ? kInf : *lse * static_cast<T>(kLog2E);  // saw nothing: P = 0
    }
  }

  // Runs the block of keys that begins at `key`.
  void RunBlock(const KeyBlock& block) {
    const GradScratch<T>& s = scratch_;
    const auto [batch, kv_head, key] = block;
    const int64_t count = std::min(s.blocks.keys, shape_.keys - key);
    RowRange rows = RowsThatSee(shape_, 0, shape_.q_rows, key, count);
    std::fill_n(s.dkeys, s.blocks.keys * s.blocks.dim, T{0});
    std::fill_n(s.dvalues, s.blocks.keys * s.blocks.dim, T{0});
    // Strips stop at `packed` too: memory that is not packed may hold NaN, and 0 * NaN is NaN.
    const int64_t packed = KeysBeforeEnd(shape_, rows, key, count);
    if (packed > 0) {
      PackKeys(block, packed);
      if (dropout_.active()) dropout_.SetKeys(key, packed);
    }
    next_keys_.Set(shape_, op_, format_, block, s.blocks.keys,
                   group_ * (rows.end - rows.begin) / kStrip);
    // The first block sets dq, even for rows that see nothing.
    if (key == 0 && shape_.first) rows = {0, shape_.q_rows};
    for (int64_t h = 0; h < group_; ++h) {
      // All blocks of keys use the same strips.
      for (int64_t row = rows.begin / kBlockRows * kBlockRows; row < rows.end; row += kBlockRows) {
        RunRows({batch, kv_head, h}, row, {key, packed, key / s.blocks.keys});
      }
    }
    // The packed queries include the factors scale and log2(e), so only ln(2) is missing.
    StoreKeyGradients(s.dkeys, static_cast<T>(kLn2), op_.dk, block, count);
    StoreKeyGradients(s.dvalues, T{1}, op_.dv, block, count);
  }

  void StoreKeyGradients(const T* sums, T factor, const AttentionOperand& to, const KeyBlock& block,
                         int64_t count) {
    out_format_.unpack(sums, scratch_.blocks.keys, count, shape_.dim, factor,
                       out_format_.At(to, block.batch, block.kv_head, block.key), to.row_stride,
                       stream_);
  }

  void PackKeys(const KeyBlock& block, int64_t count) {
    const GradScratch<T>& s = scratch_;
    const int64_t dim = shape_.dim;
    const void* const k = format_.At(op_.k, block.batch, block.kv_head, block.key);
    const void* const v = format_.At(op_.v, block.batch, block.kv_head, block.key);
    format_.pack(k, op_.k.row_stride, count, 0, dim, T{1}, s.blocks.keys, s.keys);
    const auto pack_transposed = pairs_ ? &PackTransposedPairs<T> : format_.pack_transposed;
    pack_transposed(k, op_.k.row_stride, count, dim, s.query, s.keys_t);
    pack_transposed(v, op_.v.row_stride, count, dim, s.query, s.values_t);
  }

  // Runs the block of rows that begins at `row`.
  void RunRows(const Head& head, int64_t row, const Keys& keys) {
    const GradScratch<T>& s = scratch_;
    const int64_t dim = shape_.dim;
    const int64_t rows = std::min(kBlockRows, shape_.q_rows - row);
    const int64_t spare = RoundUp(rows, kStep) - rows;
    const void* const q = format_.At(op_.q, head.batch, QueryHead(head), row);
    const void* const dout = format_.At(op_.dout, head.batch, QueryHead(head), row);
    format_.pack(q, op_.q.row_stride, rows, spare, dim, static_cast<T>(shape_.scale * kLog2E),
                 kBlockRows, s.query);
    format_.pack(dout, op_.dout.row_stride, rows, spare, dim, T{1}, kBlockRows, s.dout);
    if (pairs_) {
      PackPairs(q, op_.q.row_stride, rows, spare, dim, kBlockRows, s.query_pairs);
      PackPairs(dout, op_.dout.row_stride, rows, spare, dim, kBlockRows, s.dout_pairs);
    }
    ForEachStrip(rows, [&](auto m, int64_t r, int64_t n) HWY_ATTR {
      const BlockRange blocks = BlocksSeen(shape_, row + r, n, s.blocks.keys);
      const bool first = shape_.first && keys.block == blocks.first;
      const bool sees = !blocks.empty && blocks.first <= keys.block && keys.block <= blocks.last;
      if (!sees && !first && !StandsBetween(row + r, keys)) return;
      RunStrip<decltype(m)::value>(head, row, r, n, keys, first);
    });
    AddKeyGradients(row, rows, keys);
  }

  // Whether a row that sees nothing is between rows that see keys of one panel. AddKeyGradients
  // processes these rows together, so the row's P must be set to 0, too.
  bool StandsBetween(int64_t row, const Keys& keys) const {
    const int64_t at = shape_.seen[row].begin - keys.key;
    return 0 < at && at < keys.count && at % kPanel<T> != 0;
  }

  // Adds to dK and dV, from P and dS of a block of rows.
  void AddKeyGradients(int64_t row, int64_t rows, const Keys& keys) {
    constexpr int64_t P = kPanel<T>;
    const GradScratch<T>& s = scratch_;
    for (int64_t c = 0; c < keys.count; c += P) {
      ForEachStrip(std::min(P, keys.count - c), [&](auto m, int64_t i, int64_t real) HWY_ATTR {
        constexpr int M = decltype(m)::value;
        // Other rows see none of these keys.
        const RowRange seen = RowsThatSee(shape_, row, rows, keys.key + c + i, real);
        const int64_t r = seen.begin - row, n = seen.end - seen.begin;
        if (n <= 0) return;
        const int64_t at = c * kBlockRows + r * P + i;
        MultiplyColumns<M>(s.p + at, s.dout + r * P, kBlockRows, n, shape_.dim,
                           s.dvalues + (c + i) * P, s.blocks.keys * P);
        MultiplyColumns<M>(s.ds + at, s.query + r * P, kBlockRows, n, shape_.dim,
                           s.dkeys + (c + i) * P, s.blocks.keys * P);
      });
    }
  }

  // Runs rows [r, r + rows) of the block, padded to M.
  template <int M>
  void RunStrip(const Head& head, int64_t block, int64_t r, int64_t rows, const Keys& keys,
                bool first) {
    const int64_t dim = shape_.dim;
    const int64_t row = block + r;
    const Limits limits = LimitsOf<M>(shape_, row, rows, keys.key, keys.count, kPanel<T>);
    const T* const all_lse = scratch_.lse + head.in_group * shape_.q_rows;
    T lse[M], delta[M];
    for (int64_t i = 0; i < M; ++i) {
      const int64_t at = row + std::min(i, rows - 1);
      lse[i] = all_lse[at];
      delta[i] = *delta_.At(head.batch, head.kv_head, head.in_group, at);
    }
    T* const dq = dq_.At(head.batch, head.kv_head, head.in_group, row);
    const T scale = static_cast<T>(shape_.scale);
    const auto run = pairs_ ? &GradStrip<M, kHasPairs<T>, T> : &GradStrip<M, false, T>;
    SetAhead(head, row, rows, first, limits);
    const StripDropout<T> dropout = {&dropout_, head.batch, QueryHead(head), row, rows};
    if (rows == M && dim % kLanes<T> == 0) {
      run(scratch_, r, dim, scale, limits, first, lse, delta, dropout, ahead_, dq, dq_.row_stride,
          kPanel<T>);
    } else {
      T* const out = scratch_.dquery;
      if (!first) Pack<T>(dq, dq_.row_stride, rows, M - rows, dim, T{1}, M, out);
      run(scratch_, r, dim, scale, limits, first, lse, delta, dropout, ahead_, out, kPanel<T>,
          M * kPanel<T>);
      Unpack<T>(out, M, rows, dim, T{1}, dq, dq_.row_stride, false);
    }
  }

  // Prefetches what the corresponding rows of the next block read, the dq that the next strip adds
  // to, and a share of the next keys.
  void SetAhead(const Head& head, int64_t row, int64_t rows, bool first, const Limits& limits) {
    const int64_t dim = shape_.dim, strip = row + rows, block = row + kBlockRows;
    ahead_.Clear();
    for (const AttentionOperand& x : {op_.q, op_.dout}) {
      ahead_.Add(format_.RowsAt(x, head.batch, QueryHead(head), block,
                                std::min(rows, shape_.q_rows - block), dim));
    }
    if (!first) {
      const T* const dq = dq_.At(head.batch, head.kv_head, head.in_group, strip);
      ahead_.Add(WideMemoryRows(dq, dq_.row_stride, std::min(rows, shape_.q_rows - strip), dim));
    }
    next_keys_.AddShare(ahead_);
    ahead_.Start(PanelsOf<T>(limits));
  }

  const AttentionShape& shape_;
  const AttentionOperands& op_;
  const Format<T> format_, out_format_;
  const GradScratch<T> scratch_;
  KeyDropout<T> dropout_;
  const int64_t group_;  // query heads that share a key head
  const WideRows<T> delta_;
  const bool pairs_;  // scores and dO V^T are products of pairs of bf16
  bool stream_;       // dk and dv go past the caches
  WideRows<T> dq_;
  NextKeys next_keys_;
  RowsAhead ahead_;
};

void Backward(const AttentionShape& shape, const AttentionOperands& operands, void* memory) {
  AttentionScratch scratch(memory);
  VisitFloat(shape.dtype, [&](auto t) {
    using In = decltype(t);
    using T = Compute<In>;
    const Format<T> format = FormatOf<In, T>();
    const Format<T> out = shape.out_dtype == shape.dtype ? format : FormatOf<T, T>();
    GradPass<T>(shape, operands, format, out, scratch).Run();
  });
}

void Delta(const AttentionShape& shape, const AttentionOperands& op) {
  VisitFloat(shape.dtype, [&](auto t) {
    using In = decltype(t);
    using T = Compute<In>;
    const Format<T> format = FormatOf<In, T>();
    const WideRows<T> delta = WideRows<T>::Of(op.delta, 1);
    for (int64_t batch = 0; batch < shape.batch; ++batch) {
      for (int64_t h = 0; h < shape.q_heads; ++h) {
        format.row_products(format.At(op.o, batch, h, 0), op.o.row_stride,
                            format.At(op.dout, batch, h, 0), op.dout.row_stride, shape.q_rows,
                            shape.dim, delta.At(batch, h, 0, 0), op.delta.row_stride);
      }
    }
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Backward);
HWY_EXPORT(Delta);

int64_t AttentionGradScratchBytes(const AttentionShape& shape) {
  AttentionScratch scratch(nullptr);
  VisitFloat(shape.dtype, [&](auto t) { GradScratch<Compute<decltype(t)>>(shape, scratch); });
  return scratch.bytes();
}

void RunAttentionGrad(const AttentionShape& shape, const AttentionOperands& operands,
                      void* scratch) {
  HWY_DYNAMIC_DISPATCH(Backward)(shape, operands, scratch);
}

void RunAttentionDelta(const AttentionShape& shape, const AttentionOperands& operands) {
  HWY_DYNAMIC_DISPATCH(Delta)(shape, operands);
}

}  // namespace dtensor::kernels
#endif  // HWY_ONCE
