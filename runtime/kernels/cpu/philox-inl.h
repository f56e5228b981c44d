// Philox of philox.h, a counter in each lane. Compiled once for each instruction set: include after
// hwy/foreach_target.h.
#if defined(DTENSOR_RUNTIME_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DTENSOR_RUNTIME_KERNELS_CPU_PHILOX_INL_H_
#undef DTENSOR_RUNTIME_KERNELS_CPU_PHILOX_INL_H_
#else
#define DTENSOR_RUNTIME_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <cstdint>

#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

// The lower and upper halves of the 64-bit products of each lane: even and odd lanes are multiplied
// separately, and interleaved again.
template <class D, class V>
HWY_INLINE void MulWide(D d, V a, V b, V& lower, V& upper) {
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::DupOdd(a), hn::DupOdd(b));
  lower = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  upper = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// Writes the words of lane i to words + 4 * i.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void PhiloxVector(D d, V c0, V c1, V c2, V c3, uint64_t seed, uint32_t* words) {
  const V m0 = hn::Set(d, kPhiloxMultiplier0), m1 = hn::Set(d, kPhiloxMultiplier1);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    V lower0, upper0, lower1, upper1;
    MulWide(d, c0, m0, lower0, upper0);
    MulWide(d, c2, m1, lower1, upper1);
    c0 = hn::Xor(hn::Xor(upper1, c1), hn::Set(d, k0));
    c1 = lower1;
    c2 = hn::Xor(hn::Xor(upper0, c3), hn::Set(d, k1));
    c3 = lower0;
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

#endif

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_PHILOX_INL_H_
