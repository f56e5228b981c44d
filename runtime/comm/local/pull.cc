#include "dtensor/runtime/comm/local/pull.h"

#include <cstdint>

#include "dtensor/runtime/kernels/cpu/box_copy.h"
#include "dtensor/runtime/kernels/cpu/box_reduce.h"

namespace dtensor {

void RunPulls(absl::Span<const Pull> pulls, size_t first) {
  int64_t bytes = 0;
  for (const Pull& pull : pulls) bytes += pull.loop.bytes();
  const bool stream = bytes >= kStreamBytes;
  for (size_t i = 0; i < pulls.size(); ++i) {
    const Pull& pull = pulls[(first + i) % pulls.size()];
    if (pull.loop.operands() == 2 && pull.scale == 1 && pull.in == pull.out) {
      CopyBox(pull.loop, stream);
    } else {
      ReduceBox(pull.loop, pull.in, pull.out, pull.op, pull.scale, stream);
    }
  }
}

}  // namespace dtensor
