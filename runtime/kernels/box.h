// Boxes: what an exchange does on one device, copies and reductions between the memories of several
// tensors of any strides.
#ifndef DTENSOR_RUNTIME_KERNELS_BOX_H_
#define DTENSOR_RUNTIME_KERNELS_BOX_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/box_loop.h"

namespace dtensor::kernels {

// dst = scale * (source 1 op source 2 op ...) for each element of a box; with one source, a copy
// that may convert. Terms are added in the order of the sources, in f32 for floats of at most 32
// bits, else in their own type. A plain value of bare pointers.
struct BoxMove {
  // Requires: as BoxLoop; ConvertsOnTheWay(the sources' type, dst's); scale == 1 unless floats;
  // kMax or kMin for bool. A source overlaps dst only where it is in place.
  BoxMove(const ReceiveBox& box, const Tensor& dst, absl::Span<const Tensor* const> sources,
          ReduceOp op = ReduceOp::kSum, double scale = 1);

  bool copies() const { return loop.operands() == 2 && scale == 1 && in == out; }
  // The box is empty, or its only source lies there already.
  bool is_done() const { return loop.bytes() == 0 || (copies() && loop.in_place()); }

  BoxLoop loop;
  DType in, out;
  ReduceOp op;
  double scale;
};

// All moves in one launch, so that an error means that none runs: one after the other, from the
// first-th on and round. `kernel`, a string literal, names it in errors. Requires: none writes what
// another reads or writes. Errors: the device's failure.
absl::Status MoveBoxes(Device& device, const char* kernel, absl::Span<const BoxMove> moves,
                       size_t first = 0);

// out = what changes no result of `op`: 0, 1, the least or the largest value there is. Requires:
// `out` is row-major.
absl::Status FillIdentity(Device& device, ReduceOp op, const Tensor& out);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_BOX_H_
