// Boxes: what an exchange does on one device, copies and reductions between the memories of several
// tensors of any strides. A BoxMove (box_move.h) is one of them.
#ifndef DTENSOR_RUNTIME_KERNELS_BOX_H_
#define DTENSOR_RUNTIME_KERNELS_BOX_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/box_move.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// All moves at once, so that an error means that none runs: one after the other, from the first-th
// on and round; on cuda those whose rows are turned in a second launch, which may fail alone where
// the device fails with it. `kernel`, a string literal, names it in errors. Requires: none writes
// what another reads or writes. Errors: the device's failure. `out_bytes`: of all that is written,
// where these moves are a part of it; large results are written past the caches.
absl::Status MoveBoxes(Device& device, const char* kernel, absl::Span<const BoxMove> moves,
                       size_t first = 0, int64_t out_bytes = 0);

// out = what changes no result of `op`: 0, 1, the least or the largest value there is. Requires:
// `out` is row-major.
absl::Status FillIdentity(Device& device, ReduceOp op, const Tensor& out);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_BOX_H_
