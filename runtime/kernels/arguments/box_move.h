// BoxMove: one box that an exchange copies or reduces; see box.h.
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_MOVE_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_MOVE_H_

#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/box_loop.h"

namespace DTENSOR_EXPORT dtensor {
namespace kernels {

// dst = scale * (source 1 op source 2 op ...) for each element of a box; with one source, a copy
// that may convert. Terms are added in the order of the sources, in f32 for floats of at most 32
// bits, else in their own type. A plain value with bare pointers.
struct BoxMove {
  // Requires: as BoxLoop; ConvertsOnTheWay(the sources' type, dst's); scale == 1 unless floats;
  // kMax or kMin for bool. A source may overlap dst only if it is in place.
  BoxMove(const ReceiveBox& box, const Tensor& dst, absl::Span<const Tensor* const> sources,
          ReduceOp op = ReduceOp::kSum, double scale = 1)
      : loop(box, dst, sources), in(sources[0]->dtype()), out(dst.dtype()), op(op), scale(scale) {}

  bool copies() const { return loop.operands() == 2 && scale == 1 && in == out; }
  // Whether nothing is to be done: the box is empty, or its only source is already in place.
  bool is_done() const { return loop.bytes() == 0 || (copies() && loop.in_place()); }

  BoxLoop loop;
  DType in, out;
  ReduceOp op;
  double scale;
};

}  // namespace kernels
}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_BOX_MOVE_H_
