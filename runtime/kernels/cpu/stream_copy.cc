// StreamCopy() of box_copy.h, with the widest vectors available: fewer, larger accesses keep more
// cache lines in flight from memory at the same time, which matters most for short rows.
#include <algorithm>
#include <cstring>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/stream_copy.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dtensor::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kCacheLine = 64;

template <class D>
HWY_INLINE void StreamLine(D d, std::byte* dst, const std::byte* src) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kCacheLine; i += lanes) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const uint8_t*>(src + i)), d,
               reinterpret_cast<uint8_t*>(dst + i));
  }
}

void StreamCopyTarget(std::byte* dst, const std::byte* src, int64_t n, const std::byte* next) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(dst) % kCacheLine);
  const int64_t head = std::min(n, misaligned == 0 ? 0 : kCacheLine - misaligned);
  std::memcpy(dst, src, head);
  const hn::CappedTag<uint8_t, kCacheLine> d;
  int64_t i = head;
  if (next == nullptr) {
    for (; i + kCacheLine <= n; i += kCacheLine) StreamLine(d, dst + i, src + i);
  } else {
    const auto run = [&](int64_t end, const std::byte* ahead) HWY_ATTR {
      for (; i + kCacheLine <= end; i += kCacheLine) {
        hwy::Prefetch(ahead + i);
        StreamLine(d, dst + i, src + i);
      }
    };
    const int64_t distance = std::min(n, kFetchAhead);
    run(n - distance, src + distance);
    run(n, next - (n - distance));
  }
  std::memcpy(dst + i, src + i, n - i);
}

}  // namespace
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace dtensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dtensor {

HWY_EXPORT(StreamCopyTarget);

void StreamCopy(std::byte* dst, const std::byte* src, int64_t n, const std::byte* next) {
  HWY_DYNAMIC_DISPATCH(StreamCopyTarget)(dst, src, n, next);
}

}  // namespace dtensor
#endif  // HWY_ONCE
