#include "dtensor/runtime/comm/pull.h"

#include <cstdint>

#include "dtensor/runtime/comm/box_copy.h"
#include "dtensor/runtime/comm/box_reduce.h"

namespace dtensor {

void RunPulls(absl::Span<const Pull> pulls) {
  int64_t bytes = 0;
  for (const Pull& pull : pulls) bytes += pull.loop.bytes();
  const bool stream = bytes >= kStreamBytes;
  for (const Pull& pull : pulls) {
    if (pull.loop.operands() == 2 && pull.scale == 1) {
      CopyBox(pull.loop, stream);
    } else {
      ReduceBox(pull.loop, pull.dtype, pull.op, pull.scale, stream);
    }
  }
}

}  // namespace dtensor
