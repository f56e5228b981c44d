#include "dtensor/runtime/kernels/cpu/reduce_row.h"

#include <algorithm>
#include <cstring>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/reduce_row.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/half_lanes-inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// How elements of a type become vectors of the accumulator, and back: Stored is the type in memory,
// Lane that of the vectors.
template <typename T>
struct Same {
  using Stored = T;
  using Lane = T;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const T* p) {
    return hn::LoadU(d, p);
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, T* p) {
    hn::StoreU(v, d, p);
  }
  template <class D>
  static HWY_INLINE void Stream(D d, hn::Vec<D> v, T* p) {
    hn::Stream(v, d, p);
  }
};

// How rows of S are combined into one vector, and written as T. Both have the same lanes.
template <class S, class T>
class Combiner {
 public:
  using In = typename S::Stored;
  using Out = typename T::Stored;
  using Lane = typename T::Lane;

  Combiner(double scale, absl::Span<const std::byte* const> rows, std::byte* dst, bool stream,
           const std::byte* const* next)
      : scale_(static_cast<Lane>(scale)),
        rows_(rows),
        dst_(reinterpret_cast<Out*>(dst)),
        stream_(stream),
        next_(next) {}

  template <class F>
  HWY_INLINE void Run(int64_t n, F f) const {
    const hn::ScalableTag<Lane> d;
    const int64_t step = hn::Lanes(d);
    int64_t i = 0;
    if (stream_) {
      const int64_t head = std::min(n, ElementsToLine());
      for (; i < head; i += step) Part(d, i, std::min(step, head - i), f);
      i = StreamFrom(d, head, n, f);
    } else {
      for (; i + step <= n; i += step) T::Store(d, Vector(d, i, f), dst_ + i);
    }
    if (i < n) Part(d, i, n - i, f);
  }

 private:
  // Streams whole vectors from element i on; returns where it ends. Two rows, the usual case, have
  // their own loops: with fewer instructions per cache line, the core has more lines in flight from
  // memory at the same time.
  template <class D, class F>
  HWY_INLINE int64_t StreamFrom(D d, int64_t i, int64_t n, F f) const {
    const int64_t step = hn::Lanes(d);
    const int64_t distance = std::min<int64_t>(n, kFetchAhead / sizeof(In));
    if (rows_.size() != 2) {
      for (; i + step <= n; i += step) {
        for (size_t row = 0; next_ != nullptr && row < rows_.size(); ++row) {
          hwy::Prefetch(i < n - distance ? Row(row) + i + distance
                                         : Next(row) + i - (n - distance));
        }
        T::Stream(d, Vector(d, i, f), dst_ + i);
      }
      return i;
    }
    const Combiner local = *this;  // a copy in registers, which no store can change
    const In *const a = local.Row(0), *const b = local.Row(1);
    const auto two = [&] DT_REDUCE_INLINE {
      T::Stream(d, local.Scaled(d, f(S::Load(d, a + i), S::Load(d, b + i))), local.dst_ + i);
    };
    if (next_ == nullptr) {
      for (; i + step <= n; i += step) two();
      return i;
    }
    const auto run = [&](int64_t end, const In* ahead_a, const In* ahead_b) DT_REDUCE_INLINE {
      for (; i + step <= end; i += step) {
        hwy::Prefetch(ahead_a + i);
        hwy::Prefetch(ahead_b + i);
        two();
      }
    };
    run(n - distance, a + distance, b + distance);
    run(n, Next(0) - (n - distance), Next(1) - (n - distance));
    return i;
  }

  template <class D, class F>
  HWY_INLINE hn::Vec<D> Vector(D d, int64_t i, F f) const {
    auto v = S::Load(d, Row(0) + i);
    for (size_t row = 1; row < rows_.size(); ++row) v = f(v, S::Load(d, Row(row) + i));
    return Scaled(d, v);
  }

  // Combines less than or exactly one vector of elements, with the same operations, in a buffer.
  template <class D, class F>
  HWY_NOINLINE void Part(D d, int64_t i, int64_t n, F f) const {
    HWY_ALIGN In in[HWY_MAX_BYTES / sizeof(Lane)] = {};
    HWY_ALIGN Out out[HWY_MAX_BYTES / sizeof(Lane)];
    const auto load = [&](size_t row) DT_REDUCE_INLINE {
      std::memcpy(in, Row(row) + i, n * sizeof(In));
      return S::Load(d, in);
    };
    auto v = load(0);
    for (size_t row = 1; row < rows_.size(); ++row) v = f(v, load(row));
    T::Store(d, Scaled(d, v), out);
    std::memcpy(dst_ + i, out, n * sizeof(Out));
  }

  template <class D>
  HWY_INLINE hn::Vec<D> Scaled(D d, hn::Vec<D> v) const {
    if constexpr (hwy::IsFloat<Lane>()) return hn::Mul(v, hn::Set(d, scale_));
    return v;
  }

  // The elements before dst is aligned to a cache line, so that streaming stores fill whole lines.
  int64_t ElementsToLine() const {
    const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst_) % 64);
    return misaligned == 0 ? 0 : (64 - misaligned) / static_cast<int64_t>(sizeof(Out));
  }

  const In* Row(size_t row) const { return reinterpret_cast<const In*>(rows_[row]); }
  const In* Next(size_t row) const { return reinterpret_cast<const In*>(next_[row]); }

  Lane scale_;
  absl::Span<const std::byte* const> rows_;
  Out* dst_;
  bool stream_;
  const std::byte* const* next_;
};

// A NaN on either side is the result.
template <class V>
HWY_INLINE auto NotFrom(V a, V b, decltype(hn::Gt(a, b)) a_wins) {
  if constexpr (hwy::IsFloat<hn::TFromV<V>>()) {
    return hn::IfThenElse(hn::Or(a_wins, hn::IsNaN(a)), a, b);
  } else {
    return hn::IfThenElse(a_wins, a, b);
  }
}

template <class S, class T = S>
void Reduce(ReduceOp op, double scale, absl::Span<const std::byte* const> rows, std::byte* dst,
            int64_t n, bool stream, const std::byte* const* next) {
  const Combiner<S, T> combiner(scale, rows, dst, stream, next);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Add(a, b); });
    case ReduceOp::kProduct:
      return combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Mul(a, b); });
    case ReduceOp::kMax:
      return combiner.Run(
          n, [](auto a, auto b) DT_REDUCE_INLINE { return NotFrom(a, b, hn::Gt(a, b)); });
    case ReduceOp::kMin:
      return combiner.Run(
          n, [](auto a, auto b) DT_REDUCE_INLINE { return NotFrom(a, b, hn::Lt(a, b)); });
  }
}

// For bool: the maximum or the minimum of 0 and 1.
void ReduceBool(ReduceOp op, absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n,
                bool stream, const std::byte* const* next) {
  const Combiner<Same<uint8_t>, Same<uint8_t>> combiner(1, rows, dst, stream, next);
  if (op == ReduceOp::kMin) {
    combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Min(a, b); });
  } else {
    combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Max(a, b); });
  }
}

// Calls fn with the class that converts floats of `dtype` to f32 lanes.
template <class Fn>
void VisitF32Lanes(DType dtype, Fn fn) {
  if (dtype == DType::kF32) return fn(Same<float>());
  if (dtype == DType::kBF16) return fn(Half<BFloat16Format>());
  fn(Half<Float16Format>());
}

void ReduceRowTarget(DType in, DType out, ReduceOp op, double scale,
                     absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n,
                     bool stream, const std::byte* const* next) {
  switch (in) {
    case DType::kF64:
      return Reduce<Same<double>>(op, scale, rows, dst, n, stream, next);
    case DType::kI32:
      return Reduce<Same<int32_t>>(op, scale, rows, dst, n, stream, next);
    case DType::kI64:
      return Reduce<Same<int64_t>>(op, scale, rows, dst, n, stream, next);
    case DType::kBool:
      return ReduceBool(op, rows, dst, n, stream, next);
    default:
      VisitF32Lanes(in, [&](auto from) {
        VisitF32Lanes(out, [&](auto to) {
          Reduce<decltype(from), decltype(to)>(op, scale, rows, dst, n, stream, next);
        });
      });
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor {

HWY_EXPORT(ReduceRowTarget);

void ReduceRow(DType in, DType out, ReduceOp op, double scale,
               absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n, bool stream,
               const std::byte* const* next) {
  HWY_DYNAMIC_DISPATCH(ReduceRowTarget)(in, out, op, scale, rows, dst, n, stream, next);
}

}  // namespace dtensor
#endif  // HWY_ONCE
