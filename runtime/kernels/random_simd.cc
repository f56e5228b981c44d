#include "dtensor/runtime/kernels/random_simd.h"

#include "dtensor/runtime/kernels/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/random_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/philox.h"
#include "dtensor/runtime/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

void OneByOne(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t* words) {
  for (int64_t i = 0; i < n; ++i, words += 4) {
    const auto word = PhiloxBlock(seed, stream, block + static_cast<uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[j] = word[j];
  }
}

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void PhiloxBlocks(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t* words) {
  OneByOne(seed, stream, block, n, words);
}

#else

// The lower and upper halves of the 64-bit products of each lane: even lanes and odd lanes apart,
// and interleaved again.
template <class D, class V>
HWY_INLINE void MulWide(D d, V a, V b, V& lower, V& upper) {
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::DupOdd(a), hn::DupOdd(b));
  lower = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
  upper = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// Lane i computes block `block` + i; the low word of the counter must not wrap on the way.
template <class D>
HWY_INLINE void PhiloxVector(D d, uint64_t seed, uint64_t stream, uint64_t block, uint32_t* words) {
  using V = hn::Vec<D>;
  V c0 = hn::Add(hn::Iota(d, 0), hn::Set(d, static_cast<uint32_t>(block)));
  V c1 = hn::Set(d, static_cast<uint32_t>(block >> 32));
  V c2 = hn::Set(d, static_cast<uint32_t>(stream));
  V c3 = hn::Set(d, static_cast<uint32_t>(stream >> 32));
  const V m0 = hn::Set(d, kPhiloxMultiplier[0]), m1 = hn::Set(d, kPhiloxMultiplier[1]);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    V lower0, upper0, lower1, upper1;
    MulWide(d, c0, m0, lower0, upper0);
    MulWide(d, c2, m1, lower1, upper1);
    c0 = hn::Xor(hn::Xor(upper1, c1), hn::Set(d, k0));
    c1 = lower1;
    c2 = hn::Xor(hn::Xor(upper0, c3), hn::Set(d, k1));
    c3 = lower0;
    k0 += kPhiloxKeyStep[0];
    k1 += kPhiloxKeyStep[1];
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

void PhiloxBlocks(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t* words) {
  const hn::ScalableTag<uint32_t> d;
  const int64_t step = hn::Lanes(d);
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    const uint64_t first = block + static_cast<uint64_t>(i);
    const bool wraps = static_cast<uint32_t>(first) > UINT32_MAX - static_cast<uint32_t>(step);
    if (wraps) {
      OneByOne(seed, stream, first, step, words + 4 * i);
    } else {
      PhiloxVector(d, seed, stream, first, words + 4 * i);
    }
  }
  OneByOne(seed, stream, block + static_cast<uint64_t>(i), n - i, words + 4 * i);
}

#endif

template <typename T>
void DropoutOf(const T* x, const uint32_t* words, uint32_t threshold, Compute<T> scale, T* out,
               int64_t n) {
  if constexpr (std::is_same_v<T, double>) {
    for (int64_t i = 0; i < n; ++i) out[i] = (words[i] >> 8) >= threshold ? x[i] * scale : 0;
  } else {
    const Tag<T> d;
    const hn::Rebind<uint32_t, Tag<T>> d32;
    const hn::Rebind<int32_t, Tag<T>> ds32;  // 24 bits: signed comparisons do
    const auto scales = hn::Set(d, scale);
    const auto thresholds = hn::Set(ds32, static_cast<int32_t>(threshold));
    ForEachVector(d, n, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
      const auto bits = hn::BitCast(ds32, hn::ShiftRight<8>(LoadRaw(d32, words + i, lanes)));
      const auto drop = hn::RebindMask(d, hn::Lt(bits, thresholds));
      const auto scaled = hn::Mul(Load(d, x + i, lanes), scales);
      Store(hn::IfThenZeroElse(drop, scaled), d, out + i, lanes);
    });
  }
}

void Dropout(DType dtype, const void* x, const uint32_t* words, uint32_t threshold, double scale,
             void* out, int64_t n) {
  VisitTarget(dtype, [&](auto t) {
    using T = decltype(t);
    DropoutOf(static_cast<const T*>(x), words, threshold, static_cast<Compute<T>>(scale),
              static_cast<T*>(out), n);
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(PhiloxBlocks);
HWY_EXPORT(Dropout);

namespace simd {

void PhiloxBlocks(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(PhiloxBlocks)(seed, stream, block, n, words);
}

void Dropout(DType dtype, const void* x, const uint32_t* words, uint32_t threshold, double scale,
             void* out, int64_t n) {
  DT_DISPATCH(Dropout, dtype)(dtype, x, words, threshold, scale, out, n);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
