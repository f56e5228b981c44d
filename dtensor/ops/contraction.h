// Contractions of one rank's local tensors whose dimensions are named by letters: what Einsum
// computes.
#ifndef DTENSOR_OPS_CONTRACTION_H_
#define DTENSOR_OPS_CONTRACTION_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {
namespace internal {

// A letter for each dimension, as a number; each stands once.
using TensorLetters = absl::InlinedVector<int, 6>;
struct LetteredTensor {
  Tensor tensor;
  TensorLetters letters;
};

// out = a b, or x alone: summed over the letters that `out` lacks, and repeated along those that
// only `out` has. Letters that one operand alone has are summed before the product, and that sum is
// rounded to the type. A letter has one size in all tensors. Operands have any strides, and `out`
// is row-major; all are of one float type, and `out` shares no memory with the others.
absl::Status Contract(Device& device, const LetteredTensor& a, const LetteredTensor& b,
                      const LetteredTensor& out);
absl::Status Contract(Device& device, const LetteredTensor& x, const LetteredTensor& out);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_OPS_CONTRACTION_H_
