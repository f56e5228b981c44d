#include "dtensor/bench/stream_limit.h"

#include <immintrin.h>

namespace dtensor::bench {
namespace {

__attribute__((target("avx512f"))) void Copy512(std::byte* dst, const std::byte* src,
                                                int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 256) {
    const __m512i a = _mm512_load_si512(src + i), b = _mm512_load_si512(src + i + 64);
    const __m512i c = _mm512_load_si512(src + i + 128), d = _mm512_load_si512(src + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + i + 192), d);
  }
}

void Copy128(std::byte* dst, const std::byte* src, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(src + i)));
  }
}

}  // namespace

void BestCopy(std::byte* dst, const std::byte* src, int64_t bytes) {
  static const bool wide = __builtin_cpu_supports("avx512f");
  wide ? Copy512(dst, src, bytes) : Copy128(dst, src, bytes);
  _mm_sfence();
}

}  // namespace dtensor::bench
