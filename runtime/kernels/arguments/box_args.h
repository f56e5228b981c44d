// The arguments of box.h's and copy.h's kernels. A loop over boxes is a list of any length: a
// device with memory of its own needs a table of it there.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
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

// Start at move `first` and wrap around; no move writes what another reads or writes.
struct MoveBoxesArgs {
  absl::Span<const BoxMove> moves;  // the caller's: what runs later needs a copy
  size_t first;
  int64_t out_bytes;  // written in total, if that is more than by these moves
};

struct FillIdentityArgs {
  ReduceOp op;
  DType dtype;
  void* out;
  int64_t n;
};
static_assert(std::is_trivially_copyable_v<FillIdentityArgs>);

// The identity of `op`, as an element of type T.
template <typename T>
T IdentityOf(ReduceOp op) {
  if constexpr (std::is_arithmetic_v<T>) {
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
  } else {
    return T(IdentityOf<float>(op));
  }
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_ARGS_H_
