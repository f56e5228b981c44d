// How the attention kernels access their operands: rows of any type and stride, the keys that a row
// sees, and strips of rows. Compiled once for each instruction set: include after
// hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cpu/attention_ahead.h"
#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
// After highway_targets.h.
#include "dtensor/runtime/kernels/cpu/attention_panels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

// Copies into and out of panels for one type in memory, so that their caller is compiled once for
// all types with which it computes in T.
template <typename T>
struct Format {
  bool same;             // the type in memory is T
  int64_t element_size;  // bytes
  decltype(&Pack<T, T>) pack;
  decltype(&Unpack<T, T>) unpack;
  decltype(&PackTransposed<T, T>) pack_transposed;
  decltype(&StoreRows<T, T>) store;
  decltype(&RowProducts<T, T>) row_products;

  // The address of element [batch, row, head, 0].
  void* At(const AttentionOperand& operand, int64_t batch, int64_t head, int64_t row) const {
    const int64_t offset =
        batch * operand.batch_stride + head * operand.head_stride + row * operand.row_stride;
    return static_cast<char*>(operand.data) + offset * element_size;
  }
  // `rows` rows that begin there.
  MemoryRows RowsAt(const AttentionOperand& operand, int64_t batch, int64_t head, int64_t row,
                    int64_t rows, int64_t dim) const {
    return {static_cast<const char*>(At(operand, batch, head, row)),
            operand.row_stride * element_size, rows, dim * element_size};
  }
};

template <typename In, typename T>
Format<T> FormatOf() {
  return {std::is_same_v<In, T>,  sizeof(In),        &Pack<In, T>,       &Unpack<In, T>,
          &PackTransposed<In, T>, &StoreRows<In, T>, &RowProducts<In, T>};
}

// A row of T of an operand, or of scratch memory that holds one group of heads at a time. `head` is
// the head's place in its group.
template <typename T>
struct WideRows {
  T* data = nullptr;
  int64_t batch_stride = 0, group_stride = 0, head_stride = 0, row_stride = 0;

  static WideRows Of(const AttentionOperand& x, int64_t group) {
    return {static_cast<T*>(x.data), x.batch_stride, group * x.head_stride, x.head_stride,
            x.row_stride};
  }
  T* At(int64_t batch, int64_t kv_head, int64_t head, int64_t row) const {
    return data + batch * batch_stride + kv_head * group_stride + head * head_stride +
           row * row_stride;
  }
};

// `rows` rows of T at `data`.
template <typename T>
MemoryRows WideMemoryRows(const T* data, int64_t stride, int64_t rows, int64_t dim) {
  constexpr int64_t kSize = sizeof(T);
  return {reinterpret_cast<const char*>(data), stride * kSize, rows, dim * kSize};
}

// --- Which keys a row sees: a range of a block's.

struct Limits {
  int64_t first, last;  // over all rows; first is the begin of a panel
  int64_t begin[kStrip], end[kStrip];
};

// How many panels of keys these rows overlap.
template <typename T>
int64_t PanelsOf(const Limits& limits) {
  return (limits.last - limits.first + kPanel<T> - 1) / kPanel<T>;
}

// The limits of the rows [row, row + rows), padded to M, against keys [key, key + count).
template <int M>
HWY_INLINE Limits LimitsOf(const AttentionShape& shape, int64_t row, int64_t rows, int64_t key,
                           int64_t count, int64_t panel) {
  Limits limits;
  for (int i = 0; i < M; ++i) {
    const SeenKeys& seen = shape.seen[row + std::min<int64_t>(i, rows - 1)];
    limits.begin[i] = std::clamp<int64_t>(seen.begin - key, 0, count);
    limits.end[i] = std::clamp<int64_t>(seen.end - key, 0, count);
  }
  limits.first = limits.begin[0] / panel * panel;
  limits.last = std::max(limits.end[M - 1], limits.first);
  return limits;
}

// Whether some row does not see all of the keys [key, key + n).
template <int M>
HWY_INLINE bool NeedsMask(const Limits& limits, int64_t key, int64_t n) {
  return limits.end[0] < key + n || limits.begin[M - 1] > key;
}

// The first and the last of the blocks of `size` keys that some of these rows see. Rows that see
// nothing belong to block 0.
struct BlockRange {
  int64_t first = 0, last = 0;
  bool empty = true;
};
inline BlockRange BlocksSeen(const AttentionShape& shape, int64_t row, int64_t rows, int64_t size) {
  const int64_t begin = shape.seen[row].begin, end = shape.seen[row + rows - 1].end;
  if (begin >= end) return {};
  return {begin / size, (end - 1) / size, false};
}

// The rows [begin, end) of [row, row + rows) that see a key of [key, key + n); all rows between the
// first and the last such row are among them.
struct RowRange {
  int64_t begin, end;
};
inline RowRange RowsThatSee(const AttentionShape& shape, int64_t row, int64_t rows, int64_t key,
                            int64_t n) {
  const SeenKeys* const seen = shape.seen + row;
  const auto ends_before = [&](const SeenKeys& s) { return s.end <= key; };
  const auto begins_before = [&](const SeenKeys& s) { return s.begin < key + n; };
  return {row + (std::partition_point(seen, seen + rows, ends_before) - seen),
          row + (std::partition_point(seen, seen + rows, begins_before) - seen)};
}

// How many of the keys [key, key + n) are before the end of what these rows see; 0 for no rows.
inline int64_t KeysBeforeEnd(const AttentionShape& shape, const RowRange& rows, int64_t key,
                             int64_t n) {
  if (rows.begin >= rows.end) return 0;
  return std::clamp<int64_t>(shape.seen[rows.end - 1].end - key, 0, n);
}

// A block of keys of one key head, which begins at `key`.
struct KeyBlock {
  int64_t batch, kv_head, key;
};

// Prefetches what the next block of keys reads, in shares for the strips that run before it.
class NextKeys {
 public:
  // Chooses the block after `now`; blocks have `size` keys. `strips` strips run before it.
  template <typename T>
  void Set(const AttentionShape& shape, const AttentionOperands& op, const Format<T>& format,
           const KeyBlock& now, int64_t size, int64_t strips) {
    *this = NextKeys();
    KeyBlock next = {now.batch, now.kv_head, now.key + size};
    if (next.key >= shape.keys) next = {now.batch, now.kv_head + 1, 0};
    if (next.kv_head >= shape.kv_heads) next = {now.batch + 1, 0, 0};
    if (next.batch >= shape.batch || shape.keys == 0) return;
    const int64_t n = std::min(size, shape.keys - next.key);
    const RowRange rows = RowsThatSee(shape, 0, shape.q_rows, next.key, n);
    const int64_t keys = KeysBeforeEnd(shape, rows, next.key, n);
    if (keys == 0) return;
    share_ = keys / std::max<int64_t>(1, strips) + 1;
    keys_ = format.RowsAt(op.k, next.batch, next.kv_head, next.key, keys, shape.dim);
    values_ = format.RowsAt(op.v, next.batch, next.kv_head, next.key, keys, shape.dim);
  }
  void AddShare(RowsAhead& ahead) {
    ahead.Add(keys_.Take(share_));
    ahead.Add(values_.Take(share_));
  }

 private:
  MemoryRows keys_, values_;
  int64_t share_ = 0;
};

// Calls fn(std::integral_constant<int, M>(), i, n) for strips of M rows from i that cover `rows`,
// the last of which may be padded: n of its rows are real.
template <class Fn>
HWY_INLINE void ForEachStrip(int64_t rows, Fn fn) {
  for (int64_t i = 0; i < rows;) {
    const int64_t left = RoundUp(rows - i, kStep);
    if (left >= kStrip) {
      fn(std::integral_constant<int, kStrip>(), i, std::min<int64_t>(kStrip, rows - i));
      i += kStrip;
    } else if (left == 2 * kStep) {
      fn(std::integral_constant<int, 2 * kStep>(), i, std::min<int64_t>(2 * kStep, rows - i));
      i += 2 * kStep;
    } else {
      fn(std::integral_constant<int, kStep>(), i, std::min<int64_t>(kStep, rows - i));
      i += kStep;
    }
  }
}

// Replaces acc[i][j] by `hidden` if the key is not visible.
template <int M, int N, class V>
HWY_INLINE void MaskTile(const Limits& limits, int64_t key, V hidden, V (&acc)[M][N]) {
  const hn::DFromV<V> d;
  using T = hn::TFromD<decltype(d)>;
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      const int64_t at = key + j * kLanes<T>;
      const auto lane = hn::Iota(d, 0);
      const auto seen = hn::And(hn::Lt(lane, hn::Set(d, static_cast<T>(limits.end[i] - at))),
                                hn::Ge(lane, hn::Set(d, static_cast<T>(limits.begin[i] - at))));
      acc[i][j] = hn::IfThenElse(seen, acc[i][j], hidden);
    }
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_OPERANDS_INL_H_
