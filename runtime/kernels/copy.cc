#include "dtensor/runtime/kernels/copy.h"

#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/box_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/box.h"
#include "dtensor/runtime/kernels/cuda/box.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const CopyArgs& args) {
  return {.bytes = 2.0 * static_cast<double>(args.loop.bytes())};
}

constexpr ByDevice<CopyArgs> kCopy = {
    .name = "Copy", .host = cpu::Copy, .cuda = DT_ON_CUDA(cuda::Copy), .work = WorkOf};

// The whole tensor, as a box that moves to the same place.
ReceiveBox Whole(const Tensor& tensor) {
  ReceiveBox box{.peers = {0}};
  for (const int64_t n : tensor.shape()) box.dims.push_back({.length = n});
  return box;
}

}  // namespace

absl::Status Copy(Device& device, const Tensor& src, const Tensor& dst) {
  DT_CHECK(src.shape() == dst.shape() && src.dtype() == dst.dtype());
  if (src.numel() == 0) return device.failure();
  const Tensor* sources[] = {&src};
  return kCopy.Run(device, {src.dtype()},
                   {BoxLoop(Whole(dst), dst, sources), src.SharesStorageWith(dst)});
}

absl::StatusOr<Tensor> Contiguous(Device& device, const Tensor& x) {
  return x.is_contiguous() ? absl::StatusOr<Tensor>(x) : Duplicate(device, x);
}

absl::StatusOr<Tensor> Duplicate(Device& device, const Tensor& x) {
  DT_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(device, x.dtype(), x.shape()));
  DT_RETURN_IF_ERROR(Copy(device, x, copy));
  return copy;
}

}  // namespace dtensor::kernels
