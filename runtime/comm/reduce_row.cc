#include "dtensor/runtime/comm/reduce_row.h"

#include <cstring>

// SSSE3 and the second AVX-512 set (AVX3_DL) bring nothing to these loops and cost compile time.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/comm/reduce_row.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

// The small functions below must melt into their loop.
#ifndef DT_REDUCE_INLINE
#define DT_REDUCE_INLINE HWY_ATTR __attribute__((always_inline))
#endif

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
};

// bf16 and f16, whose bits both directions compute as dtype.h does, for all lanes at once.
template <class Format>
struct Half {
  using Stored = uint16_t;
  using Lane = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* p) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    return hn::BitCast(d, Format::Widen(d, hn::PromoteTo(du, hn::LoadU(d16, p))));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint16_t* p) {
    const hn::RebindToSigned<D> ds;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = Format::Narrow(d, hn::BitCast(du, v));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(ds, bits)), d16, p);
  }
};

struct BFloat16Format {
  template <class D, class U>
  static HWY_INLINE U Widen(D, U bits) {
    return hn::ShiftLeft<16>(bits);
  }
  template <class D, class U>
  static HWY_INLINE U Narrow(D d, U bits) {
    const hn::RebindToUnsigned<D> du;
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(hn::BitCast(d, bits)));
    return hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  }
};

struct Float16Format {
  template <class D, class U>
  static HWY_INLINE U Widen(D d, U bits) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> ds;
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fff)));
    const auto normal = hn::Add(magnitude, hn::Set(du, 112u << 23));
    const auto special = hn::Add(normal, hn::Set(du, 112u << 23));  // infinite or NaN
    const auto quiet = hn::Or(special, hn::Set(du, 0x400000));
    const auto one_more = hn::BitCast(d, hn::Add(normal, hn::Set(du, 1u << 23)));
    const auto subnormal = hn::BitCast(du, hn::Sub(one_more, hn::Set(d, 0x1p-14f)));
    // All magnitudes are below 2^31, where signed comparisons do.
    const auto m = hn::BitCast(ds, magnitude);
    const auto below = [&](int32_t limit) DT_REDUCE_INLINE {
      return hn::RebindMask(du, hn::Lt(m, hn::Set(ds, limit)));
    };
    auto f = hn::IfThenElse(below((0x7c00 << 13) + 1), special, quiet);
    f = hn::IfThenElse(below(0x7c00 << 13), normal, f);
    f = hn::IfThenElse(below(1 << 23), subnormal, f);
    return hn::Or(f, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000))));
  }
  template <class D, class U>
  static HWY_INLINE U Narrow(D d, U bits) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> ds;
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
    const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ff));
    const auto nan = hn::Or(payload, hn::Set(du, 0x7e00));
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto subnormal = hn::Sub(hn::BitCast(du, sum), hn::Set(du, 0x3f000000));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto rebased = hn::Sub(magnitude, hn::Set(du, (112u << 23) - 0xfff));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
    const auto m = hn::BitCast(ds, magnitude);
    const auto below = [&](int32_t limit) DT_REDUCE_INLINE {
      return hn::RebindMask(du, hn::Lt(m, hn::Set(ds, limit)));
    };
    auto half = hn::IfThenElse(below(0x7f800001), hn::Set(du, 0x7c00), nan);
    half = hn::IfThenElse(below(0x47800000), normal, half);
    half = hn::IfThenElse(below(0x38800000), subnormal, half);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    return hn::Or(half, sign);
  }
};

// How a row of T is combined into one vector, and written.
template <class T>
class Combiner {
 public:
  using Stored = typename T::Stored;
  using Lane = typename T::Lane;

  Combiner(double scale, absl::Span<const std::byte* const> rows, std::byte* dst)
      : scale_(static_cast<Lane>(scale)), rows_(rows), dst_(reinterpret_cast<Stored*>(dst)) {}

  template <class F>
  HWY_INLINE void Run(int64_t n, F f) const {
    const hn::ScalableTag<Lane> d;
    const int64_t step = hn::Lanes(d);
    int64_t i = 0;
    for (; i + step <= n; i += step) T::Store(d, Vector(d, i, f), dst_ + i);
    if (i < n) Tail(d, i, n - i, f);
  }

 private:
  template <class D, class F>
  HWY_INLINE hn::Vec<D> Vector(D d, int64_t i, F f) const {
    auto v = T::Load(d, Row(0) + i);
    for (size_t row = 1; row < rows_.size(); ++row) v = f(v, T::Load(d, Row(row) + i));
    return Scaled(d, v);
  }

  // The last few elements, by the same vector operations through a buffer.
  template <class D, class F>
  HWY_INLINE void Tail(D d, int64_t i, int64_t n, F f) const {
    HWY_ALIGN Stored buffer[HWY_MAX_BYTES / sizeof(Stored)] = {};
    const auto load = [&](size_t row) DT_REDUCE_INLINE {
      std::memcpy(buffer, Row(row) + i, n * sizeof(Stored));
      return T::Load(d, buffer);
    };
    auto v = load(0);
    for (size_t row = 1; row < rows_.size(); ++row) v = f(v, load(row));
    T::Store(d, Scaled(d, v), buffer);
    std::memcpy(dst_ + i, buffer, n * sizeof(Stored));
  }

  template <class D>
  HWY_INLINE hn::Vec<D> Scaled(D d, hn::Vec<D> v) const {
    if constexpr (hwy::IsFloat<Lane>()) return hn::Mul(v, hn::Set(d, scale_));
    return v;
  }

  const Stored* Row(size_t row) const { return reinterpret_cast<const Stored*>(rows_[row]); }

  Lane scale_;
  absl::Span<const std::byte* const> rows_;
  Stored* dst_;
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

template <class T>
void Reduce(ReduceOp op, double scale, absl::Span<const std::byte* const> rows, std::byte* dst,
            int64_t n) {
  const Combiner<T> combiner(scale, rows, dst);
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

// bool: the larger or the smaller of 0 and 1.
void ReduceBool(ReduceOp op, absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n) {
  const Combiner<Same<uint8_t>> combiner(1, rows, dst);
  if (op == ReduceOp::kMin) {
    combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Min(a, b); });
  } else {
    combiner.Run(n, [](auto a, auto b) DT_REDUCE_INLINE { return hn::Max(a, b); });
  }
}

void ReduceRowTarget(DType dtype, ReduceOp op, double scale,
                     absl::Span<const std::byte* const> rows, std::byte* dst, int64_t n) {
  switch (dtype) {
    case DType::kF32:
      return Reduce<Same<float>>(op, scale, rows, dst, n);
    case DType::kF64:
      return Reduce<Same<double>>(op, scale, rows, dst, n);
    case DType::kBF16:
      return Reduce<Half<BFloat16Format>>(op, scale, rows, dst, n);
    case DType::kF16:
      return Reduce<Half<Float16Format>>(op, scale, rows, dst, n);
    case DType::kI32:
      return Reduce<Same<int32_t>>(op, scale, rows, dst, n);
    case DType::kI64:
      return Reduce<Same<int64_t>>(op, scale, rows, dst, n);
    case DType::kBool:
      return ReduceBool(op, rows, dst, n);
  }
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor {

HWY_EXPORT(ReduceRowTarget);

void ReduceRow(DType dtype, ReduceOp op, double scale, absl::Span<const std::byte* const> rows,
               std::byte* dst, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ReduceRowTarget)(dtype, op, scale, rows, dst, n);
}

}  // namespace dtensor
#endif  // HWY_ONCE
