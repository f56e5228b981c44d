#include "dtensor/runtime/kernels/cpu/box.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/box_reduce.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"

namespace dtensor::kernels::cpu {
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

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args) {
  return Launch(device, kernel, args, [](const CopyArgs& a) {
    CopyBox(a.loop, StreamStores(a.loop.bytes(), a.in_place));
  });
}

absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args) {
  // It runs before Launch returns: no copy.
  if (device.kind() == Device::Kind::kCpu) {
    return device.Launch(kernel, [&args] { RunMoves(args.moves, args.first); });
  }
  return device.Launch(kernel, [copy = std::vector<BoxMove>(args.moves.begin(), args.moves.end()),
                                first = args.first] { RunMoves(copy, first); });
}

absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args) {
  return Launch(device, kernel, args, [](const FillIdentityArgs& a) {
    VisitDType(a.dtype, [&](auto element) {
      using T = decltype(element);
      if constexpr (std::is_arithmetic_v<T>) {
        element = IdentityOf<T>(a.op);
      } else {
        element = T(IdentityOf<float>(a.op));
      }
      std::fill_n(static_cast<T*>(a.out), a.n, element);
    });
  });
}

}  // namespace dtensor::kernels::cpu
