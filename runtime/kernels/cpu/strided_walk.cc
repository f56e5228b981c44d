#include "dtensor/runtime/kernels/cpu/strided_walk.h"

#include <cstdlib>

namespace dtensor::kernels::cpu {
namespace {

template <typename Bits>
void Gather(Bits* dst, const Bits* src, int64_t n, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i * stride];
}

template <typename Bits>
void GatherRows(Bits* dst, const Bits* src, int64_t rows, int64_t row_stride, int64_t n,
                int64_t stride) {
  if (rows > 1 && std::abs(row_stride) < std::abs(stride)) {
    for (int64_t i = 0; i < n; ++i) {
      const Bits* column = src + i * stride;
      for (int64_t r = 0; r < rows; ++r) dst[r * n + i] = column[r * row_stride];
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r, dst += n, src += row_stride) Gather(dst, src, n, stride);
}

}  // namespace

void GatherPlane(void* dst, const void* src, int64_t rows, int64_t row_stride, int64_t n,
                 int64_t stride, int64_t size) {
  const auto gather = [&](auto bits) {
    using Bits = decltype(bits);
    GatherRows(static_cast<Bits*>(dst), static_cast<const Bits*>(src), rows, row_stride, n, stride);
  };
  switch (size) {
    case 1:
      return gather(uint8_t{});
    case 2:
      return gather(uint16_t{});
    case 4:
      return gather(uint32_t{});
    default:
      return gather(uint64_t{});
  }
}

void GatherStrided(void* dst, const void* src, int64_t n, int64_t stride, int64_t size) {
  GatherPlane(dst, src, /*rows=*/1, /*row_stride=*/0, n, stride, size);
}

const void* Packed(const StridedInput& input, std::vector<std::byte>& scratch) {
  if (input.contiguous) return input.data;
  scratch.resize(input.bytes);
  std::byte* dst = scratch.data();
  const StridedLoop<1>& loop = input.loop;
  loop.ForEachRow([&](const auto& offsets) {
    const int64_t n = loop.inner_size();
    GatherStrided(dst, input.data + offsets[0] * input.size, n, loop.inner_stride(0), input.size);
    dst += n * input.size;
  });
  return scratch.data();
}

}  // namespace dtensor::kernels::cpu
