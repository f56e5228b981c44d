// Converts the 16-bit floats in memory to vectors of f32, and back, bit for bit as dtype.h does.
//
// Compiled once for each instruction set: include after hwy/foreach_target.h, as Highway's own
// -inl.h files.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_HALF_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_HALF_LANES_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_HALF_LANES_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_HALF_LANES_INL_H_
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

// The small functions below must be inlined into their loop.
#ifndef DT_REDUCE_INLINE
#define DT_REDUCE_INLINE HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace dtensor::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// bf16 and f16. A Format turns 16 bits in 32-bit lanes into those of a float, and back, as dtype.h
// does.
template <class Format>
struct Half {
  using Stored = uint16_t;
  using Lane = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* p) {
    return Format::Widen(d, hn::LoadU(hn::Rebind<uint16_t, D>(), p));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint16_t* p) {
    hn::StoreU(Format::Narrow(d, v), hn::Rebind<uint16_t, D>(), p);
  }
  template <class D>
  static HWY_INLINE void Stream(D d, hn::Vec<D> v, uint16_t* p) {
    // Highway streams at least 16 bytes, however few lanes there are.
    if constexpr (hn::MaxLanes(D()) * sizeof(uint16_t) >= 16) {
      hn::Stream(Format::Narrow(d, v), hn::Rebind<uint16_t, D>(), p);
    } else {
      Store(d, v, p);
    }
  }
};

template <class D>
using Vec16 = hn::Vec<hn::Rebind<uint16_t, D>>;  // as many lanes as D has

// The lower halves of 32-bit lanes, whose upper halves are 0.
template <class D, class U>
HWY_INLINE Vec16<D> LowerHalves(D, U bits) {
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(hn::RebindToSigned<D>(), bits));
}

struct BFloat16Format {
  template <class D>
  static HWY_INLINE hn::Vec<D> Widen(D d, Vec16<D> half) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<D>(), half)));
  }
  template <class D>
  static HWY_INLINE Vec16<D> Narrow(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    return LowerHalves(d, hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded)));
  }
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// For CPUs that have instructions for f16.
struct Float16Format {
  template <class D>
  static HWY_INLINE hn::Vec<D> Widen(D d, Vec16<D> half) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
  }
  template <class D>
  static HWY_INLINE Vec16<D> Narrow(D, hn::Vec<D> v) {
    const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v);
    return hn::BitCast(hn::Rebind<uint16_t, D>(), half);
  }
};
#else
struct Float16Format {
  template <class D>
  static HWY_INLINE hn::Vec<D> Widen(D d, Vec16<D> half) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> ds;
    const auto bits = hn::PromoteTo(du, half);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fff)));
    const auto normal = hn::Add(magnitude, hn::Set(du, 112u << 23));
    const auto special = hn::Add(normal, hn::Set(du, 112u << 23));  // infinite or NaN
    const auto quiet = hn::Or(special, hn::Set(du, 0x400000));
    const auto one_more = hn::BitCast(d, hn::Add(normal, hn::Set(du, 1u << 23)));
    const auto subnormal = hn::BitCast(du, hn::Sub(one_more, hn::Set(d, 0x1p-14f)));
    // All magnitudes are below 2^31, so signed comparisons are correct.
    const auto m = hn::BitCast(ds, magnitude);
    const auto below = [&](int32_t limit) DT_REDUCE_INLINE {
      return hn::RebindMask(du, hn::Lt(m, hn::Set(ds, limit)));
    };
    auto f = hn::IfThenElse(below((0x7c00 << 13) + 1), special, quiet);
    f = hn::IfThenElse(below(0x7c00 << 13), normal, f);
    f = hn::IfThenElse(below(1 << 23), subnormal, f);
    return hn::BitCast(d, hn::Or(f, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)))));
  }
  template <class D>
  static HWY_INLINE Vec16<D> Narrow(D d, hn::Vec<D> v) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> ds;
    const auto bits = hn::BitCast(du, v);
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
    return LowerHalves(d, hn::Or(half, hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000))));
  }
};
#endif

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_HALF_LANES_INL_H_
