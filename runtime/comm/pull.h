// Pull: what one rank does for one transfer: reads a box from its peers' memory into its own.
#ifndef DTENSOR_RUNTIME_COMM_PULL_H_
#define DTENSOR_RUNTIME_COMM_PULL_H_

#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/box_loop.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace dtensor {

// A plain value that a launch can capture.
struct Pull {
  BoxLoop loop;
  DType in, out;
  ReduceOp op;
  double scale;
};

// One after the other, from `first` on and round; all at once decide whether the output is large
// (kStreamBytes).
void RunPulls(absl::Span<const Pull> pulls, size_t first);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULL_H_
