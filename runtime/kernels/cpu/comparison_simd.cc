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
    if (dtype == DType::kF16) {
      return CompareOf(f, static_cast<const Float16*>(a), static_cast<const Float16*>(b), bytes, n,
                       stream);
    }
    CompareOf(f, static_cast<const float*>(a), static_cast<const float*>(b), bytes, n, stream);
  });
}

// Elements are moved as unsigned Bits.
template <typename Bits>
void WhereOf(const uint8_t* condition, const void* a, const void* b, void* out, int64_t n,
             bool stream) {
  const hn::ScalableTag<Bits> d;
  const hn::Rebind<uint8_t, hn::ScalableTag<Bits>> d8;
  const Bits *x = static_cast<const Bits*>(a), *y = static_cast<const Bits*>(b);
  Bits* to = static_cast<Bits*>(out);
  ForEachVectorTo(d, to, n, stream, [&](int64_t i, auto lanes) DT_VECTOR_LAMBDA {
    const auto chosen = hn::PromoteTo(d, LoadRaw(d8, condition + i, lanes));
    const auto is_a = hn::Eq(chosen, hn::Set(d, 1));
    StoreRaw(hn::IfThenElse(is_a, LoadRaw(d, x + i, lanes), LoadRaw(d, y + i, lanes)), d, to + i,
             lanes);
  });
}

void Where(int64_t size, const bool* condition, const void* a, const void* b, void* out, int64_t n,
           bool stream) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(condition);
  if (size == 2) return WhereOf<uint16_t>(bytes, a, b, out, n, stream);
  WhereOf<uint32_t>(bytes, a, b, out, n, stream);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor::kernels {

HWY_EXPORT(Compare);
HWY_EXPORT(Where);

namespace simd {

void Compare(CompareOp op, DType dtype, const void* a, const void* b, bool* out, int64_t n,
             bool stream) {
  HWY_DYNAMIC_DISPATCH(Compare)(op, dtype, a, b, out, n, stream);
}

void Where(int64_t size, const bool* condition, const void* a, const void* b, void* out, int64_t n,
           bool stream) {
  HWY_DYNAMIC_DISPATCH(Where)(size, condition, a, b, out, n, stream);
}

}  // namespace simd
}  // namespace dtensor::kernels
#endif  // HWY_ONCE
