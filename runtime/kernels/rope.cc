#include <memory>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/rope_simd.h"
#include "dtensor/runtime/kernels/rope_table.h"
#include "dtensor/runtime/kernels/strided_loop.h"

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

}  // namespace

absl::Status Rope(Device& device, const Tensor& x, const IndexSet& positions, double theta,
                  bool inverse, const Tensor& y) {
  DT_CHECK(x.rank() == 4 && IsFloat(x.dtype()) && x.size(3) % 2 == 0);
  DT_CHECK(y.shape() == x.shape() && y.dtype() == x.dtype() && y.is_contiguous());
  DT_CHECK(x.size(1) == positions.size());
  const StridedLoop<1> tokens(absl::MakeConstSpan(x.shape()).first(2),
                              {absl::MakeConstSpan(x.strides()).first(2)});
  const Heads heads(x);
  return device.Launch("Rope", [=, dtype = x.dtype(), length = x.size(1), numel = x.numel(),
                                data = static_cast<const std::byte*>(x.raw()),
                                out = static_cast<std::byte*>(y.raw())] {
    if (numel == 0) return;
    const std::shared_ptr<const RopeTable> table = GetRopeTable(positions, theta, heads.d);
    const int64_t half = heads.d / 2, token_size = heads.heads * heads.d;
    const simd::TokenHeads shape{dtype, heads.heads, half,
                                 heads.in_place() ? heads.head_stride : heads.d};
    std::vector<std::byte> scratch;
    int64_t token = 0;
    tokens.ForEachRow([&](const auto& offsets) {
      for (int64_t i = 0; i < tokens.inner_size(); ++i, ++token) {
        const int64_t offset = offsets[0] + i * tokens.inner_stride(0);
        const int64_t angles = token % length * half;
        simd::RotateHeads(shape, heads.Get(data + offset * heads.size, scratch),
                          table->cos.data() + angles, table->sin.data() + angles, inverse,
                          out + token * token_size * heads.size);
      }
    });
  });
}

}  // namespace dtensor::kernels
