#include "dtensor/runtime/kernels/cpu/box.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/box_reduce.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"

namespace dtensor::kernels::cpu {
namespace {

// Whether the output is large is decided for all moves together.
void RunMoves(absl::Span<const BoxMove> moves, size_t first, int64_t out_bytes) {
  int64_t bytes = 0;
  for (const BoxMove& move : moves) bytes += move.loop.bytes();
  const bool stream = std::max(bytes, out_bytes) >= kStreamExchangeBytes;
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

}  // namespace

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args) {
  return Launch(device, kernel, args, [](const CopyArgs& a) {
    CopyBox(a.loop, StreamStores(a.loop.bytes(), a.in_place));
  });
}

absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args) {
  // On the CPU the kernel runs before Launch returns, so the moves need not be copied.
  if (device.kind() == Device::Kind::kCpu) {
    return device.Launch(kernel, [&args] { RunMoves(args.moves, args.first, args.out_bytes); });
  }
  return device.Launch(kernel, [copy = std::vector<BoxMove>(args.moves.begin(), args.moves.end()),
                                first = args.first,
                                out_bytes = args.out_bytes] { RunMoves(copy, first, out_bytes); });
}

absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args) {
  return Launch(device, kernel, args, [](const FillIdentityArgs& a) {
    VisitDType(a.dtype, [&](auto element) {
      using T = decltype(element);
      std::fill_n(static_cast<T*>(a.out), a.n, IdentityOf<T>(a.op));
    });
  });
}

}  // namespace dtensor::kernels::cpu
