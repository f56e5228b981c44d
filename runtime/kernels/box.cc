#include "dtensor/runtime/kernels/box.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/box_reduce.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"

namespace dtensor::kernels {
namespace {

// All at once decide whether the output is large.
void RunMoves(absl::Span<const BoxMove> moves, size_t first) {
  int64_t bytes = 0;
  for (const BoxMove& move : moves) bytes += move.loop.bytes();
  const bool stream = bytes >= kStreamExchangeBytes;
  for (size_t i = 0; i < moves.size(); ++i) {
    const BoxMove& move = moves[(first + i) % moves.size()];
    if (move.is_done()) continue;
    if (move.copies()) {
      CopyBox(move.loop, stream);
    } else {
      ReduceBox(move.loop, move.in, move.out, move.op, move.scale, stream);
    }
  }
}

template <typename T>
T IdentityOf(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kProduct:
      return T(1);
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default:
      return T(0);
  }
}

}  // namespace

BoxMove::BoxMove(const ReceiveBox& box, const Tensor& dst, absl::Span<const Tensor* const> sources,
                 ReduceOp op, double scale)
    : loop(box, dst, sources), in(sources[0]->dtype()), out(dst.dtype()), op(op), scale(scale) {}

absl::Status MoveBoxes(Device& device, const char* kernel, absl::Span<const BoxMove> moves,
                       size_t first) {
  const bool done =
      std::all_of(moves.begin(), moves.end(), [](const BoxMove& move) { return move.is_done(); });
  if (done || device.is_meta()) return device.failure();
  // It runs before Launch returns: no copy.
  if (device.kind() == Device::Kind::kCpu) {
    return device.Launch(kernel, [=] { RunMoves(moves, first); });
  }
  return device.Launch(kernel, [copy = std::vector<BoxMove>(moves.begin(), moves.end()), first] {
    RunMoves(copy, first);
  });
}

absl::Status FillIdentity(Device& device, ReduceOp op, const Tensor& out) {
  if (out.numel() == 0) return absl::OkStatus();
  if (op == ReduceOp::kSum) return device.FillBytes(out.raw(), 0, out.bytes());
  return VisitDType(out.dtype(), [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_arithmetic_v<T>) {
      element = IdentityOf<T>(op);
    } else {
      element = T(IdentityOf<float>(op));
    }
    return device.Launch("FillIdentity", [element, data = out.data<T>(), n = out.numel()] {
      std::fill_n(data, n, element);
    });
  });
}

}  // namespace dtensor::kernels
