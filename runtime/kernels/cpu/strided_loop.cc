#include "dtensor/runtime/kernels/cpu/strided_loop.h"

namespace dtensor::kernels {
namespace {

template <typename Bits>
void Gather(Bits* dst, const Bits* src, int64_t n, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) dst[i] = src[i * stride];
}

}  // namespace

void GatherStrided(void* dst, const void* src, int64_t n, int64_t stride, int64_t size) {
  switch (size) {
    case 1:
      return Gather(static_cast<uint8_t*>(dst), static_cast<const uint8_t*>(src), n, stride);
    case 2:
      return Gather(static_cast<uint16_t*>(dst), static_cast<const uint16_t*>(src), n, stride);
    case 4:
      return Gather(static_cast<uint32_t*>(dst), static_cast<const uint32_t*>(src), n, stride);
    default:
      return Gather(static_cast<uint64_t*>(dst), static_cast<const uint64_t*>(src), n, stride);
  }
}

Packed::Packed(const Tensor& tensor)
    : loop_(tensor.shape(), {tensor.strides()}),
      data_(static_cast<const std::byte*>(tensor.raw())),
      bytes_(tensor.bytes()),
      size_(SizeOf(tensor.dtype())),
      contiguous_(tensor.is_contiguous()) {}

const void* Packed::Get(std::vector<std::byte>& scratch) const {
  if (contiguous_) return data_;
  scratch.resize(bytes_);
  std::byte* dst = scratch.data();
  loop_.ForEachRow([&](const auto& offsets) {
    const int64_t n = loop_.inner_size();
    GatherStrided(dst, data_ + offsets[0] * size_, n, loop_.inner_stride(0), size_);
    dst += n * size_;
  });
  return scratch.data();
}

}  // namespace dtensor::kernels
