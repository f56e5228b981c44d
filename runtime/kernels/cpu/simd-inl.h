// Vectors of the compute type (f32; f64 for f64), for every float type in memory: loads, stores,
// and loops that process the last few elements with the same vector operations as all others. So an
// element's value does not depend on its position in a shard.
//
// Compiled once for each instruction set: include after hwy/foreach_target.h, as Highway's own
// -inl.h files.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_SIMD_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_SIMD_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"
// After highway_targets.h.
#include "dtensor/runtime/kernels/cpu/half_lanes-inl.h"
#include "hwy/highway.h"

// For the lambdas that process one vector: they must be inlined into their loop.
#ifndef DT_VECTOR_LAMBDA
#define DT_VECTOR_LAMBDA HWY_ATTR __attribute__((always_inline))
#endif

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
using Tag = hn::ScalableTag<Compute<T>>;

// VisitFloat (numeric.h), compiled for each instruction set: calls fn(T{}) with the C++ type of a
// float `dtype`.
template <class Fn>
HWY_INLINE void VisitTarget(DType dtype, Fn fn) {
  if (dtype == DType::kF64) return fn(double{});
  if (dtype == DType::kF16) return fn(Float16{});
  if (dtype == DType::kBF16) return fn(BFloat16{});
  fn(float{});
}

// Which lanes of a vector are in memory: all of them, stored past the caches if `stream` (the
// address is then aligned); or the first few.
struct All {
  bool stream = false;
};
struct First {
  int64_t n;
};
// The same lanes, for an operand that should stay in the caches.
HWY_INLINE All Cached(All) { return {}; }
HWY_INLINE First Cached(First lanes) { return lanes; }

// Whether masked loads and stores of T access only the lanes of the mask.
template <typename T>
inline constexpr bool kMasked = HWY_TARGET == HWY_AVX2 ? sizeof(T) >= 4 : !HWY_MEM_OPS_MIGHT_FAULT;

// Lanes that are not loaded are 0.
template <class D, typename T>
HWY_INLINE hn::Vec<D> LoadRaw(D d, const T* p, First lanes) {
  if constexpr (kMasked<T>) return hn::MaskedLoad(hn::FirstN(d, lanes.n), d, p);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)] = {};
  std::memcpy(buffer, p, lanes.n * sizeof(T));
  return hn::Load(d, buffer);
}
template <class D, typename T, class Lanes>
HWY_INLINE hn::Vec<D> LoadRaw(D d, const T* p, Lanes) {
  return hn::LoadU(d, p);
}

template <class D, typename T>
HWY_INLINE void StoreRaw(hn::Vec<D> v, D d, T* p, All lanes) {
  // Highway streams at least 16 bytes, however few lanes there are.
  constexpr bool kStreams = hn::MaxLanes(D()) * sizeof(T) >= 16;
  if (kStreams && lanes.stream) {
    hn::Stream(v, d, p);
  } else {
    hn::StoreU(v, d, p);
  }
}
template <class D, typename T>
HWY_INLINE void StoreRaw(hn::Vec<D> v, D d, T* p, First lanes) {
  if constexpr (kMasked<T>) return hn::BlendedStore(v, hn::FirstN(d, lanes.n), d, p);
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, lanes.n * sizeof(T));
}

// The elements at `p`, widened. D's lanes are float or double.
template <class D, typename T, class Lanes>
HWY_INLINE hn::Vec<D> Load(D d, const T* p, Lanes lanes) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    return LoadRaw(d, p, lanes);
  } else if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::PromoteTo(d, Load(hn::Rebind<float, D>(), p, lanes));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<uint32_t, D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, LoadRaw(d16, &p->bits, lanes))));
  } else {
    const hn::Rebind<uint16_t, D> d16;
    return ::dtensor::HWY_NAMESPACE::Float16Format::Widen(d, LoadRaw(d16, &p->bits, lanes));
  }
}

// Like Load, but lanes that are not loaded are `fill`.
template <class D, typename T, class Lanes>
HWY_INLINE hn::Vec<D> LoadOr(D d, const T* p, Lanes lanes, hn::Vec<D> fill) {
  const hn::Vec<D> v = Load(d, p, lanes);
  if constexpr (std::is_same_v<Lanes, First>) {
    return hn::IfThenElse(hn::FirstN(d, lanes.n), v, fill);
  } else {
    return v;
  }
}

// The upper 16 bits of floats, rounded to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> RoundToBFloat16(D, hn::Vec<D> v) {
  const hn::Rebind<int32_t, D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(hn::Rebind<uint32_t, D>(), v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(hn::Rebind<uint32_t, D>(), 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(hn::Rebind<uint32_t, D>(), 0x7FFF)));
  const auto nan = hn::Or(bits, hn::Set(hn::Rebind<uint32_t, D>(), 0x400000));
  const auto is_nan = hn::RebindMask(hn::Rebind<uint32_t, D>(), hn::IsNaN(v));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, nan, rounded));
  return hn::DemoteTo(d16, hn::BitCast(d32, upper));
}

// Writes v to `p`, rounded to T.
template <class D, typename T, class Lanes>
HWY_INLINE void Store(hn::Vec<D> v, D d, T* p, Lanes lanes) {
  if constexpr (std::is_same_v<T, hn::TFromD<D>>) {
    StoreRaw(v, d, p, lanes);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    StoreRaw(RoundToBFloat16(d, v), hn::Rebind<uint16_t, D>(), &p->bits, lanes);
  } else {
    StoreRaw(::dtensor::HWY_NAMESPACE::Float16Format::Narrow(d, v), hn::Rebind<uint16_t, D>(),
             &p->bits, lanes);
  }
}

// Calls fn(i, lanes) for each vector of n elements; i is its first element.
template <class D, class Fn>
HWY_INLINE void ForEachVector(D d, int64_t n, Fn fn) {
  const int64_t step = hn::Lanes(d);
  int64_t i = 0;
  for (; i + step <= n; i += step) fn(i, All());
  if (i < n) fn(i, First{n - i});
}

// The same; with `stream`, after the first few elements, which bring `out` to the alignment of
// streaming stores, whole vectors are streamed. The kernel must end with FinishStores
// (streaming.h). Written so that fn, which is inlined, appears twice and not four times: it is most
// of the code.
template <class D, typename T, class Fn>
HWY_INLINE void ForEachVectorTo(D d, const T* out, int64_t n, bool stream, Fn fn) {
  const int64_t step = hn::Lanes(d), bytes = step * static_cast<int64_t>(sizeof(T));
  int64_t i = 0, few = 0;
  if (stream) few = -reinterpret_cast<intptr_t>(out) & (bytes - 1);
  few /= static_cast<int64_t>(sizeof(T));
  if (few > n) few = n;
  while (true) {
    if (few > 0) fn(i, First{few});
    i += few;
    if (i >= n) return;
    for (; i + step <= n; i += step) fn(i, All{stream});
    few = n - i;
    if (few == 0) return;
  }
}

// out[i] = op(d, in[i]...).
template <typename T, class Op, typename... In>
HWY_INLINE void Map(T* out, int64_t n, bool stream, Op op, const In*... in) {
  const Tag<T> d;
  ForEachVectorTo(d, out, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    Store(op(d, Load(d, in + i, lanes)...), d, out + i, lanes);
  });
}

// Combines fn(i, lanes) over all vectors, in a fixed order with four chains. The lanes of the
// result are not combined.
template <class D, class Combine, class Fn>
HWY_INLINE hn::Vec<D> FoldVectors(D d, int64_t n, hn::Vec<D> identity, Combine combine, Fn fn) {
  const int64_t step = hn::Lanes(d);
  hn::Vec<D> a0 = identity, a1 = identity, a2 = identity, a3 = identity;
  int64_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    a0 = combine(a0, fn(i, All()));
    a1 = combine(a1, fn(i + step, All()));
    a2 = combine(a2, fn(i + 2 * step, All()));
    a3 = combine(a3, fn(i + 3 * step, All()));
  }
  for (; i + step <= n; i += step) a0 = combine(a0, fn(i, All()));
  if (i < n) a1 = combine(a1, fn(i, First{n - i}));
  return combine(combine(a0, a1), combine(a2, a3));
}

// The sum of fn(i, lanes) over all vectors and lanes; fn must give 0 in missing lanes.
template <class D, class Fn>
HWY_INLINE hn::TFromD<D> SumVectors(D d, int64_t n, Fn fn) {
  const auto add = [](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Add(a, b); };
  return hn::GetLane(hn::SumOfLanes(d, FoldVectors(d, n, hn::Zero(d), add, fn)));
}

// The largest element of x[0, n); -inf for none. Ignores NaN.
template <class D, typename T>
HWY_INLINE hn::TFromD<D> MaxElement(D d, const T* x, int64_t n) {
  const auto lowest = hn::Neg(hn::Inf(d));
  const auto max = [](auto a, auto b)
                       DT_VECTOR_LAMBDA { return hn::IfThenElse(hn::Gt(b, a), b, a); };
  const auto load = [&](int64_t i, auto lanes)
                        DT_VECTOR_LAMBDA { return LoadOr(d, x + i, lanes, lowest); };
  return hn::GetLane(hn::MaxOfLanes(d, FoldVectors(d, n, lowest, max, load)));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_SIMD_INL_H_
