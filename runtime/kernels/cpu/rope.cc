#include <memory>
#include <vector>

#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/rope_simd.h"
#include "dtensor/runtime/kernels/cpu/rope_table.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// One token's heads [h, d], of any strides, as contiguous rows: in place, or copied to `scratch`.
const void* HeadsOf(const RopeArgs& a, const std::byte* token, std::vector<std::byte>& scratch) {
  if (a.stride == 1) return token;
  scratch.resize(a.heads * a.d * a.size);
  for (int64_t h = 0; h < a.heads; ++h) {
    GatherStrided(scratch.data() + h * a.d * a.size, token + h * a.head_stride * a.size, a.d,
                  a.stride, a.size);
  }
  return scratch.data();
}

// T is the type of the angles.
template <typename T>
void RotateTokens(const RopeArgs& a) {
  const std::shared_ptr<const RopeTable<T>> table = GetRopeTable<T>(a.positions, a.base, a.d);
  const int64_t half = a.d / 2, token_bytes = a.heads * a.d * a.size;
  const simd::TokenHeads shape{a.dtype, a.heads, half, a.stride == 1 ? a.head_stride : a.d};
  std::vector<std::byte> scratch;
  int64_t token = 0;
  a.tokens.ForEachRow([&](const auto& offsets) {
    for (int64_t i = 0; i < a.tokens.inner_size(); ++i, ++token) {
      const int64_t offset = offsets[0] + i * a.tokens.inner_stride(0);
      const int64_t angles = token % a.length * half;
      simd::RotateHeads(shape, HeadsOf(a, a.x + offset * a.size, scratch),
                        table->cos.data() + angles, table->sin.data() + angles, a.inverse,
                        a.y + token * token_bytes);
    }
  });
}

}  // namespace

absl::Status Rope(Device& device, const char* kernel, const RopeArgs& args) {
  return Launch(device, kernel, args, [](const RopeArgs& a) {
    if (a.numel == 0) return;
    if (a.dtype == DType::kF64) return RotateTokens<double>(a);
    RotateTokens<float>(a);
  });
}

}  // namespace dtensor::kernels::cpu
