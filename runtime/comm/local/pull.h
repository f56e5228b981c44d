// Pull: what one rank does for one box: reads it from its peers' memory into its own.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_PULL_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_PULL_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/cpu/box_loop.h"

namespace dtensor {

// A plain value that a launch can capture.
struct Pull {
  BoxLoop loop;
  DType in, out;
  ReduceOp op;
  double scale;
  int64_t messages = 0;  // sources that are other ranks'
  int64_t received_bytes() const {
    return messages * loop.bytes() / loop.element_bytes() * SizeOf(in);
  }
};

// One after the other, from `first` on and round; all at once decide whether the output is large
// (kStreamBytes).
void RunPulls(absl::Span<const Pull> pulls, size_t first);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_PULL_H_
