#include <memory>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/rope_simd.h"
#include "dtensor/runtime/kernels/cpu/rope_table.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

// One token's heads [h, d] at any strides, as rows: in place, or copied to `scratch`.
struct Heads {
  explicit Heads(const Tensor& x)
      : size(SizeOf(x.dtype())),
        heads(x.size(2)),
        d(x.size(3)),
        head_stride(x.strides()[2]),
        stride(x.strides()[3]) {}

  bool in_place() const { return stride == 1; }
  const void* Get(const std::byte* token, std::vector<std::byte>& scratch) const {
    if (in_place()) return token;
    scratch.resize(heads * d * size);
    for (int64_t h = 0; h < heads; ++h) {
      GatherStrided(scratch.data() + h * d * size, token + h * head_stride * size, d, stride, size);
    }
    return scratch.data();
  }

  int64_t size, heads, d, head_stride, stride;
};

// What a rotation needs, as a kernel may hold it.
struct Rotation {
  DType dtype;
  IndexSet positions;
  double theta;
  bool inverse;
  Heads heads;
  StridedLoop<1> tokens;
  int64_t length;  // positions of each sequence
  const std::byte* x;
  std::byte* y;
};

// T is the type of the angles.
template <typename T>
void RotateTokens(const Rotation& r) {
  const Heads& heads = r.heads;
  const std::shared_ptr<const RopeTable<T>> table = GetRopeTable<T>(r.positions, r.theta, heads.d);
  const int64_t half = heads.d / 2, token_size = heads.heads * heads.d;
  const simd::TokenHeads shape{r.dtype, heads.heads, half,
                               heads.in_place() ? heads.head_stride : heads.d};
  std::vector<std::byte> scratch;
  int64_t token = 0;
  r.tokens.ForEachRow([&](const auto& offsets) {
    for (int64_t i = 0; i < r.tokens.inner_size(); ++i, ++token) {
      const int64_t offset = offsets[0] + i * r.tokens.inner_stride(0);
      const int64_t angles = token % r.length * half;
      simd::RotateHeads(shape, heads.Get(r.x + offset * heads.size, scratch),
                        table->cos.data() + angles, table->sin.data() + angles, r.inverse,
                        r.y + token * token_size * heads.size);
    }
  });
}

}  // namespace

absl::Status Rope(Device& device, const Tensor& x, const IndexSet& positions, double theta,
                  bool inverse, const Tensor& y) {
  DT_CHECK(x.ndim() == 4 && IsFloat(x.dtype()) && x.size(3) % 2 == 0);
  DT_CHECK(y.shape() == x.shape() && y.dtype() == x.dtype() && y.is_contiguous());
  DT_CHECK(x.size(1) == positions.size());
  const Rotation rotation = {x.dtype(),
                             positions,
                             theta,
                             inverse,
                             Heads(x),
                             StridedLoop<1>(absl::MakeConstSpan(x.shape()).first(2),
                                            {absl::MakeConstSpan(x.strides()).first(2)}),
                             x.size(1),
                             static_cast<const std::byte*>(x.raw()),
                             static_cast<std::byte*>(y.raw())};
  return device.Launch("Rope", [rotation, numel = x.numel()] {
    if (numel == 0) return;
    if (rotation.dtype == DType::kF64) return RotateTokens<double>(rotation);
    RotateTokens<float>(rotation);
  });
}

}  // namespace dtensor::kernels
