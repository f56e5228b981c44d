#include "dtensor/runtime/kernels/cpu/comparison_simd.h"

#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/comparison_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "dtensor/runtime/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::kernels::HWY_NAMESPACE {
namespace {

template <class Map>
void WithCompareOp(CompareOp op, Map map) {
  switch (op) {
    case CompareOp::kEqual:
      return map([](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Eq(a, b); });
    case CompareOp::kNotEqual:
      // Not Ne, which is false with NaN on some targets.
      return map([](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Not(hn::Eq(a, b)); });
    case CompareOp::kLess:
      return map([](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Lt(a, b); });
    default:
      return map([](auto a, auto b) DT_VECTOR_LAMBDA { return hn::Le(a, b); });
  }
}

template <typename T, class Op>
void CompareOf(Op op, const T* a, const T* b, uint8_t* out, int64_t n, bool stream) {
  const Tag<T> d;
  const hn::Rebind<int32_t, Tag<T>> d32;
  const hn::Rebind<uint8_t, Tag<T>> d8;
  ForEachVectorTo(d, out, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto mask = op(Load(d, a + i, Cached(lanes)), Load(d, b + i, Cached(lanes)));
    const auto ones = hn::IfThenElseZero(hn::RebindMask(d32, mask), hn::Set(d32, 1));
    StoreRaw(hn::DemoteTo(d8, ones), d8, out + i, lanes);
  });
}

void Compare(CompareOp op, DType dtype, const void* a, const void* b, bool* out, int64_t n,
             bool stream) {
  static_assert(sizeof(bool) == 1);
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  WithCompareOp(op, [&](auto f) {
    if (dtype == DType::kBF16) {
      return CompareOf(f, static_cast<const BFloat16*>(a), static_cast<const BFloat16*>(b), bytes,
                       n, stream);
    }
    CompareOf(f, static_cast<const float*>(a), static_cast<const float*>(b), bytes, n, stream);
  });
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Compare);

namespace simd {

void Compare(CompareOp op, DType dtype, const void* a, const void* b, bool* out, int64_t n,
             bool stream) {
  HWY_DYNAMIC_DISPATCH(Compare)(op, dtype, a, b, out, n, stream);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
