// Reductions of boxes in strided memories, for boxes that an exchange receives from several peers.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/arguments/box_loop.h"

namespace dtensor {

// dst = scale * (source 1 op source 2 op ...) for each element of the box, from sources of type
// `in` to `out`, as ReduceRow() does it. With one source and scale 1, a converting copy. `stream`:
// with streaming stores if rows are long. Requires: ConvertsOnTheWay(in, out); scale == 1 unless
// floats; kMax or kMin for bool. A source may overlap dst only if it is in place.
void ReduceBox(const BoxLoop& loop, DType in, DType out, ReduceOp op, double scale, bool stream);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_
