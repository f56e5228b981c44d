// Reductions of boxes in strided memories: what an exchange does with a box from several
// peers.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/arguments/box_loop.h"

namespace dtensor {

// dst = scale * (source 1 op source 2 op ...) for each element of the box, from sources of type
// `in` to `out`; ReduceRow() says how. With one source and scale 1 that is a copy that converts.
// `stream`: with streaming stores where rows are long.
// Requires: ConvertsOnTheWay(in, out); scale == 1 unless floats; kMax or kMin for bool. A source
// overlaps dst only where it is in place.
void ReduceBox(const BoxLoop& loop, DType in, DType out, ReduceOp op, double scale, bool stream);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_BOX_REDUCE_H_
