#include "dtensor/runtime/kernels/cuda/rope.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const RopeArgs& args) {
  return {.bytes = 2 * Bytes(static_cast<double>(args.numel), args.dtype)};
}

constexpr ByDevice<RopeArgs> kRope = {
    .name = "Rope", .host = cpu::Rope, .cuda = DT_ON_CUDA(cuda::Rope), .work = WorkOf};

}  // namespace

absl::Status Rope(Device& device, const Tensor& x, const IndexSet& positions, const RopeBase& base,
                  bool inverse, const Tensor& y) {
  DT_CHECK(x.ndim() == 4 && IsFloat(x.dtype()) && x.size(3) % 2 == 0);
  DT_CHECK(y.shape() == x.shape() && y.dtype() == x.dtype() && y.is_contiguous());
  DT_CHECK(x.size(1) == positions.size());
  return kRope.Run(device, {x.dtype()},
                   {.dtype = x.dtype(),
                    .positions = positions,
                    .base = base,
                    .inverse = inverse,
                    .size = SizeOf(x.dtype()),
                    .heads = x.size(2),
                    .d = x.size(3),
                    .head_stride = x.strides()[2],
                    .stride = x.strides()[3],
                    .tokens = StridedLoop<1>(absl::MakeConstSpan(x.shape()).first(2),
                                             {absl::MakeConstSpan(x.strides()).first(2)}),
                    .length = x.size(1),
                    .numel = x.numel(),
                    .x = static_cast<const std::byte*>(x.raw()),
                    .y = static_cast<std::byte*>(y.raw())});
}

}  // namespace dtensor::kernels
