// The arguments of box.h's and copy.h's kernels. A loop over boxes is a list, of any length: a
// device with memory of its own needs a table of them there.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/types/span.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/arguments/box_loop.h"
#include "dtensor/runtime/kernels/arguments/box_move.h"

namespace dtensor::kernels {

struct CopyArgs {
  BoxLoop loop;   // all of the destination, from one source
  bool in_place;  // both are one tensor's memory
};

// In turn from the first-th on and round; none writes what another reads or writes.
struct MoveBoxesArgs {
  absl::Span<const BoxMove> moves;  // the caller's: what runs later copies them
  size_t first;
};

struct FillIdentityArgs {
  ReduceOp op;
  DType dtype;
  void* out;
  int64_t n;
};
static_assert(std::is_trivially_copyable_v<FillIdentityArgs>);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_
