// Boxes: what an exchange does on one device, copies and reductions between the memories of several
// tensors of any strides. Each is a BoxMove (box_move.h).
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

// Launches all moves together, so after an error none of them runs. They run one after the other,
// starting at move `first` and wrapping around. On cuda, moves whose rows are transposed need a
// second launch; if that one fails, the device fails. `kernel`, a string literal, names them in
// errors. Requires: no move writes what another reads or writes. Errors: the device's failure.
// `out_bytes`: how much is written in total, if these moves are a part of it; large results bypass
// the caches.
absl::Status MoveBoxes(Device& device, const char* kernel, absl::Span<const BoxMove> moves,
                       size_t first = 0, int64_t out_bytes = 0);

// Fills `out` with the identity of `op`: 0, 1, or the type's least or largest value. Requires:
// `out` is row-major.
absl::Status FillIdentity(Device& device, ReduceOp op, const Tensor& out);

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_BOX_H_
