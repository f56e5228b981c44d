#include "dtensor/runtime/kernels/copy.h"

#include <cstring>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/strided_loop.h"

namespace dtensor::kernels {
namespace {

template <typename T>
void CopyStrided(const std::byte* src, int64_t src_stride, std::byte* dst, int64_t dst_stride,
                 int64_t n) {
  const T* from = reinterpret_cast<const T*>(src);
  T* to = reinterpret_cast<T*>(dst);
  for (int64_t i = 0; i < n; ++i) to[i * dst_stride] = from[i * src_stride];
}

void CopyRow(const std::byte* src, int64_t src_stride, std::byte* dst, int64_t dst_stride,
             int64_t n, int64_t size) {
  if (src_stride == 1 && dst_stride == 1) {
    std::memcpy(dst, src, n * size);
    return;
  }
  switch (size) {
    case 1:
      return CopyStrided<uint8_t>(src, src_stride, dst, dst_stride, n);
    case 2:
      return CopyStrided<uint16_t>(src, src_stride, dst, dst_stride, n);
    case 4:
      return CopyStrided<uint32_t>(src, src_stride, dst, dst_stride, n);
    default:
      return CopyStrided<uint64_t>(src, src_stride, dst, dst_stride, n);
  }
}

}  // namespace

absl::Status Copy(Device& device, const Tensor& src, const Tensor& dst) {
  DT_CHECK(src.shape() == dst.shape() && src.dtype() == dst.dtype());
  const StridedLoop<2> loop(src.shape(), {src.strides(), dst.strides()});
  const auto* from = static_cast<const std::byte*>(src.raw());
  auto* to = static_cast<std::byte*>(dst.raw());
  return device.Launch("copy", [=, size = SizeOf(src.dtype())] {
    loop.ForEachRow([&](const auto& offsets) {
      CopyRow(from + offsets[0] * size, loop.inner_stride(0), to + offsets[1] * size,
              loop.inner_stride(1), loop.inner_size(), size);
    });
  });
}

absl::StatusOr<Tensor> Contiguous(Device& device, const Tensor& x) {
  if (x.is_contiguous()) return x;
  DT_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(device, x.dtype(), x.shape()));
  DT_RETURN_IF_ERROR(Copy(device, x, copy));
  return copy;
}

}  // namespace dtensor::kernels
