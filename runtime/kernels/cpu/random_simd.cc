#include "dtensor/runtime/kernels/cpu/random_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/random_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/philox-inl.h"
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

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

// Lane i computes block `block` + i; the low word of the counter must not wrap on the way.
template <class D>
HWY_INLINE void PhiloxBlockVector(D d, uint64_t seed, uint64_t stream, uint64_t block,
                                  uint32_t* words) {
  PhiloxVector(d, hn::Add(hn::Iota(d, 0), hn::Set(d, static_cast<uint32_t>(block))),
               hn::Set(d, static_cast<uint32_t>(block >> 32)),
               hn::Set(d, static_cast<uint32_t>(stream)),
               hn::Set(d, static_cast<uint32_t>(stream >> 32)), seed, words);
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
      PhiloxBlockVector(d, seed, stream, first, words + 4 * i);
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
    const hn::Rebind<int32_t, Tag<T>> ds32;  // 24 bits: signed comparisons are correct
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
  HWY_DYNAMIC_DISPATCH(Dropout)(dtype, x, words, threshold, scale, out, n);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
