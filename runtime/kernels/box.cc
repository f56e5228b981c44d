#include "dtensor/runtime/kernels/box.h"

#include <algorithm>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/work.h"
#include "dtensor/runtime/kernels/arguments/box_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/box.h"
#include "dtensor/runtime/kernels/cuda/box.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const MoveBoxesArgs& args) {
  double bytes = 0;
  for (const BoxMove& move : args.moves) {
    if (move.is_done()) continue;
    const BoxLoop& loop = move.loop;
    const double elements = static_cast<double>(loop.bytes() / loop.element_bytes(0));
    bytes += static_cast<double>(loop.bytes()) +
             elements * static_cast<double>((loop.operands() - 1) * loop.element_bytes(1));
  }
  return {.bytes = bytes};
}

KernelWork WorkOf(const FillIdentityArgs& args) {
  return {.bytes = static_cast<double>(args.n * SizeOf(args.dtype))};
}

constexpr ByDevice<FillIdentityArgs> kFillIdentity = {.name = "FillIdentity",
                                                      .host = cpu::FillIdentity,
                                                      .cuda = DT_ON_CUDA(cuda::FillIdentity),
                                                      .work = WorkOf};

}  // namespace

absl::Status MoveBoxes(Device& device, const char* kernel, absl::Span<const BoxMove> moves,
                       size_t first, int64_t out_bytes) {
  const bool done =
      std::all_of(moves.begin(), moves.end(), [](const BoxMove& move) { return move.is_done(); });
  if (done) return device.failure();
  const ByDevice<MoveBoxesArgs> move_boxes = {
      .name = kernel, .host = cpu::MoveBoxes, .cuda = DT_ON_CUDA(cuda::MoveBoxes), .work = WorkOf};
  return move_boxes.Run(device, {moves[0].in, moves[0].out}, {moves, first, out_bytes});
}

absl::Status FillIdentity(Device& device, ReduceOp op, const Tensor& out) {
  if (out.numel() == 0) return absl::OkStatus();
  if (op == ReduceOp::kSum) return device.FillBytes(out.raw(), 0, out.bytes());
  return kFillIdentity.Run(device, {out.dtype()}, {op, out.dtype(), out.raw(), out.numel()});
}

}  // namespace dtensor::kernels
