#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention_forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/attention_dropout-inl.h"
#include "dtensor/runtime/kernels/cpu/attention_operands-inl.h"
#include "dtensor/runtime/kernels/cpu/attention_panels-inl.h"

#ifndef DTENSOR_RUNTIME_KERNELS_ATTENTION_FORWARD_ONCE_
#define DTENSOR_RUNTIME_KERNELS_ATTENTION_FORWARD_ONCE_
namespace dtensor::kernels {
namespace {

// Blocks of keys and values that stay in the second-level cache, together with the rows that stream
// through it.
AttentionBlocks ForwardBlocks(const AttentionShape& shape) { return BlocksOf(shape, 32768); }

template <typename T>
struct ForwardScratch {
  AttentionBlocks blocks;
  T *keys_t, *values;       // for one block of keys
  T *query, *scores, *out;  // for one strip of rows
  // For each row of a group, unless the caller carries them; carry: o, if o's own memory cannot
  // hold it.
  T *max, *sum, *carry;
  DropoutScratch<T> dropout;

  ForwardScratch(const AttentionShape& shape, AttentionScratch& scratch)
      : blocks(ForwardBlocks(shape)), dropout(shape, blocks, scratch) {
    const int64_t rows =
        shape.carried ? 0 : shape.q_rows * (shape.q_heads / std::max<int64_t>(1, shape.kv_heads));
    const bool in_place = SizeOf(shape.out_dtype) == sizeof(T) || shape.keys <= blocks.keys;
    keys_t = scratch.Take<T>(blocks.keys * blocks.dim);
    values = scratch.Take<T>(blocks.keys * blocks.dim);
    query = scratch.Take<T>(kAttentionPad * blocks.dim);
    scores = scratch.Take<T>(kAttentionPad * blocks.keys);
    out = scratch.Take<T>(kAttentionPad * blocks.dim);
    max = scratch.Take<T>(rows);
    sum = scratch.Take<T>(rows);
    carry = scratch.Take<T>(in_place ? 0 : rows * shape.dim);
  }
};

}  // namespace
}  // namespace dtensor::kernels
#endif  // DTENSOR_RUNTIME_KERNELS_ATTENTION_FORWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Computes the scores of M rows against one panel of keys, and the rows' largest so far. Queries in
// pairs are not scaled yet: `scale` is for their scores.
template <int M, int N, bool kPairs, typename T>
HWY_INLINE void ScoreTile(const T* query, const T* keys_t, int64_t dim, T scale,
                          const Limits& limits, int64_t key, T* scores, T* row_max) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  VecOf<T> acc[M][N];
  MultiplyRows<kPairs>(query, M * P, keys_t, dim, acc);
  if (kPairs) ScaleTile(scale, acc);
  if (NeedsMask<M>(limits, key, N * L)) MaskTile(limits, key, hn::Neg(hn::Inf(d)), acc);
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

template <typename T>
struct StripState {
  const Limits& limits;
  bool first;    // nothing is carried yet
  bool last;     // results are final: divided by the sums
  T *max, *sum;  // for each row: the largest score, the sum of exponentials
  StripDropout<T> dropout;
  RowsAhead& ahead;
};

// Processes M rows, whose queries and block of keys are in scratch memory. The queries are either
// scaled so that the weights are 2^score, or unscaled pairs.
template <int M, bool kPairs, typename T>
HWY_NOINLINE void ForwardStrip(const ForwardScratch<T>& s, int64_t dim, T log2_scale,
                               const StripState<T>& state, T* out, int64_t row_stride,
                               int64_t out_panel) {
  const hn::ScalableTag<T> d;
  constexpr int64_t L = kLanes<T>, P = kPanel<T>;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  const Limits& limits = state.limits;
  const int64_t begin = limits.first, n = limits.last;

  HWY_ALIGN T row_max[M * L];
  for (int64_t i = 0; i < M * L; i += L) hn::Store(hn::Set(d, -kInf), d, row_max + i);
  for (int64_t key = begin; key < n; key += P) {
    const T* keys_t = s.keys_t + key * (kPairs ? dim / 2 : dim);
    T* scores = s.scores + key * M;
    state.ahead.FetchSome();
    if (n - key > L) {
      ScoreTile<M, 2, kPairs>(s.query, keys_t, dim, log2_scale, limits, key, scores, row_max);
    } else {
      ScoreTile<M, 1, kPairs>(s.query, keys_t, dim, log2_scale, limits, key, scores, row_max);
    }
  }

  T beta[M], gamma[M];
  for (int i = 0; i < M; ++i) {
    T top = hn::GetLane(hn::MaxOfLanes(d, hn::Load(d, row_max + i * L)));
    if (!state.first) top = std::max(top, state.max[i]);
    const T shift = top == -kInf ? 0 : top;
    const auto shifts = hn::Set(d, shift);
    auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
    int64_t key = begin;
    T* p = s.scores + begin * M + i * P;
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
    T sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
    T carried = 0;
    if (!state.first) {
      carried = Exp2Scalar(state.max[i] - shift);
      sum += state.sum[i] * carried;
    }
    state.max[i] = top;
    state.sum[i] = sum;
    beta[i] = !state.last ? 1 : sum == 0 ? 0 : 1 / sum;
    gamma[i] = carried * beta[i];
  }
  // Drops after summing: the sums include all weights.
  if (state.dropout.keys->active()) DropWeights(state.dropout, begin, n, M, s.scores);
  MultiplyStrip<M>(s.scores + begin * M, M * P, s.values + begin * P, s.blocks.keys, n - begin, dim,
                   beta, state.first ? nullptr : gamma, out, row_stride, out_panel);
}

template <typename T>
class ForwardPass {
 public:
  ForwardPass(const AttentionShape& shape, const AttentionOperands& op, const Format<T>& format,
              const Format<T>& out_format, AttentionScratch& scratch)
      : shape_(shape),
        op_(op),
        format_(format),
        out_format_(out_format),
        scratch_(shape, scratch),
        dropout_(shape, scratch_.dropout),
        group_(shape.q_heads / shape.kv_heads),
        pairs_(CanTakePairs<T>(shape, {op.q, op.k})) {
    const int64_t rows = shape.q_rows, dim = shape.dim;
    if (shape.carried) {
      carry_ = WideRows<T>::Of(op.carry, group_);
      max_ = WideRows<T>::Of(op.max, group_);
      sum_ = WideRows<T>::Of(op.sum, group_);
      return;
    }
    max_ = {scratch_.max, 0, 0, rows, 1};
    sum_ = {scratch_.sum, 0, 0, rows, 1};
    carry_ = {scratch_.carry, 0, 0, rows * dim, dim};
    if (out_format.same) carry_ = WideRows<T>::Of(op.o, group_);
  }

  void Run() {
    for (int64_t batch = 0; batch < shape_.batch; ++batch) {
      for (int64_t kv_head = 0; kv_head < shape_.kv_heads; ++kv_head) {
        // Runs one block even if there are no keys: it writes the results of rows that see nothing.
        for (int64_t key = 0; key == 0 || key < shape_.keys; key += scratch_.blocks.keys) {
          RunBlock({batch, kv_head, key});
        }
      }
    }
  }

 private:
  // The rows of one query head of a group.
  struct Head {
    int64_t batch, kv_head, in_group;
  };
  int64_t QueryHead(const Head& head) const { return head.kv_head * group_ + head.in_group; }

  // Runs the block that begins at `key` against all rows of the query heads that share it.
  void RunBlock(const KeyBlock& keys) {
    const auto [batch, kv_head, key] = keys;
    const int64_t count = std::min(scratch_.blocks.keys, shape_.keys - key);
    const RowRange seen = RowsThatSee(shape_, 0, shape_.q_rows, key, count);
    // Strips stop at `packed` too: memory that is not packed may hold NaN, and 0 * NaN is NaN.
    const int64_t packed = KeysBeforeEnd(shape_, seen, key, count);
    if (packed > 0) {
      const auto pack_transposed = pairs_ ? &PackTransposedPairs<T> : format_.pack_transposed;
      if (dropout_.active()) dropout_.SetKeys(key, packed);
      pack_transposed(format_.At(op_.k, batch, kv_head, key), op_.k.row_stride, packed, shape_.dim,
                      scratch_.query, scratch_.keys_t);
      format_.pack(format_.At(op_.v, batch, kv_head, key), op_.v.row_stride, packed, 0, shape_.dim,
                   T{1}, scratch_.blocks.keys, scratch_.values);
    }
    next_keys_.Set(shape_, op_, format_, keys, scratch_.blocks.keys,
                   group_ * (seen.end - seen.begin) / kStrip);
    const int64_t block = key / scratch_.blocks.keys;
    for (int64_t h = 0; h < group_; ++h) {
      ForEachStrip(shape_.q_rows, [&](auto m, int64_t row, int64_t rows) HWY_ATTR {
        const BlockRange blocks = BlocksSeen(shape_, row, rows, scratch_.blocks.keys);
        const bool first = shape_.first && block == blocks.first;
        const bool last = shape_.last && block == blocks.last;
        if (block < blocks.first || block > blocks.last) return;
        if (blocks.empty && !first && !last) return;
        constexpr int M = decltype(m)::value;
        const Limits limits = LimitsOf<M>(shape_, row, rows, keys.key, packed, kPanel<T>);
        RunStrip<M>({keys.batch, keys.kv_head, h}, row, rows, limits, first, last);
      });
    }
  }

  // Rows [row, row + rows), padded to M.
  template <int M>
  void RunStrip(const Head& head, int64_t row, int64_t rows, const Limits& limits, bool first,
                bool last) {
    // Local copies, since the padding's statistics would overwrite those of the next strip.
    T max[M] = {}, sum[M] = {};
    T* all_max = max_.At(head.batch, head.kv_head, head.in_group, row);
    T* all_sum = sum_.At(head.batch, head.kv_head, head.in_group, row);
    for (int64_t i = 0; i < rows && !first; ++i) {
      max[i] = all_max[i * max_.row_stride];
      sum[i] = all_sum[i * sum_.row_stride];
    }
    const void* const q = format_.At(op_.q, head.batch, QueryHead(head), row);
    const T scale = static_cast<T>(shape_.scale * kLog2E);
    if (pairs_) {
      PackPairs(q, op_.q.row_stride, rows, M - rows, shape_.dim, M, scratch_.query);
    } else {
      format_.pack(q, op_.q.row_stride, rows, M - rows, shape_.dim, scale, M, scratch_.query);
    }
    SetAhead(head, row + rows, first, limits);
    const StripDropout<T> dropout = {&dropout_, head.batch, QueryHead(head), row, rows};
    GatherValues<M>(head, row, rows, {limits, first, last, max, sum, dropout, ahead_});
    for (int64_t i = 0; i < rows && !last; ++i) {
      all_max[i * max_.row_stride] = max[i];
      all_sum[i * sum_.row_stride] = sum[i];
    }
    if (last) StoreLse(head, row, rows, max, sum);
  }

  // Prefetches what the strip that begins at `row` reads, while the strip before it runs, and a
  // share of the next keys.
  void SetAhead(const Head& head, int64_t row, bool first, const Limits& limits) {
    const int64_t dim = shape_.dim, rows = std::min<int64_t>(kStrip, shape_.q_rows - row);
    ahead_.Clear();
    ahead_.Add(format_.RowsAt(op_.q, head.batch, QueryHead(head), row, rows, dim));
    if (!first) {
      const T* const carry = carry_.At(head.batch, head.kv_head, head.in_group, row);
      ahead_.Add(WideMemoryRows(carry, carry_.row_stride, rows, dim));
    }
    next_keys_.AddShare(ahead_);
    ahead_.Start(PanelsOf<T>(limits));
  }

  // Updates the carry or, if the strip is finished, writes o.
  template <int M>
  void GatherValues(const Head& head, int64_t row, int64_t rows, const StripState<T>& state) {
    const int64_t dim = shape_.dim;
    const T scale = static_cast<T>(shape_.scale * kLog2E);
    const auto run = pairs_ ? &ForwardStrip<M, kHasPairs<T>, T> : &ForwardStrip<M, false, T>;
    T* const carry = carry_.At(head.batch, head.kv_head, head.in_group, row);
    const bool in_place = !state.last || (out_format_.same && carry_.data == op_.o.data);
    if (in_place && rows == M && dim % kLanes<T> == 0) {
      run(scratch_, dim, scale, state, carry, carry_.row_stride, kPanel<T>);
      return;
    }
    T* const out = scratch_.out;
    if (!state.first) Pack<T>(carry, carry_.row_stride, rows, M - rows, dim, T{1}, M, out);
    run(scratch_, dim, scale, state, out, kPanel<T>, M * kPanel<T>);
    if (state.last) {
      out_format_.unpack(out, M, rows, dim, T{1},
                         out_format_.At(op_.o, head.batch, QueryHead(head), row), op_.o.row_stride,
                         false);
    } else {
      Unpack<T>(out, M, rows, dim, T{1}, carry, carry_.row_stride, false);
    }
  }

  void StoreLse(const Head& head, int64_t row, int64_t rows, const T* max, const T* sum) {
    T* lse = WideRows<T>::Of(op_.lse, group_).At(head.batch, head.kv_head, head.in_group, row);
    for (int64_t i = 0; i < rows; ++i, lse += op_.lse.row_stride) {
      *lse = sum[i] == 0 ? -std::numeric_limits<T>::infinity()
                         : static_cast<T>(kLn2) * (max[i] + std::log2(sum[i]));
    }
  }

  const AttentionShape& shape_;
  const AttentionOperands& op_;
  const Format<T> format_, out_format_;
  const ForwardScratch<T> scratch_;
  KeyDropout<T> dropout_;
  const int64_t group_;            // query heads that share a key head
  const bool pairs_;               // scores are products of pairs of bf16
  WideRows<T> carry_, max_, sum_;  // between blocks
  NextKeys next_keys_;
  RowsAhead ahead_;
};

void Forward(const AttentionShape& shape, const AttentionOperands& operands, void* memory) {
  AttentionScratch scratch(memory);
  VisitFloat(shape.dtype, [&](auto t) {
    using In = decltype(t);
    using T = Compute<In>;
    const Format<T> format = FormatOf<In, T>();
    const Format<T> out = shape.out_dtype == shape.dtype ? format : FormatOf<T, T>();
    ForwardPass<T>(shape, operands, format, out, scratch).Run();
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Forward);

int64_t AttentionScratchBytes(const AttentionShape& shape) {
  AttentionScratch scratch(nullptr);
  VisitFloat(shape.dtype, [&](auto t) { ForwardScratch<Compute<decltype(t)>>(shape, scratch); });
  return scratch.bytes();
}

void RunAttention(const AttentionShape& shape, const AttentionOperands& operands, void* scratch) {
  HWY_DYNAMIC_DISPATCH(Forward)(shape, operands, scratch);
}

}  // namespace dtensor::kernels
#endif  // HWY_ONCE
