// Gradients: an eager tape, walked backward in reverse order of creation, which is the same on
// every rank.
//
// A redistribution computes the identity, so it is not recorded on the tape: the gradient of its
// result is the gradient of its source. Contributions to one tensor's gradient may arrive in
// different layouts. Those of one layout are added where they are, and they are redistributed only
// when an operator needs the sum. So the gradients of q, k and v with respect to their common input
// are added first and need one reduce-scatter, and a parameter's gradient stays Partial until
// ReduceGradients. Exception: the gradients of a gather group (gather_group.h) that shards
// gradients are reduced during Backward, when the last of the group has arrived.
#ifndef DTENSOR_TENSOR_AUTOGRAD_H_
#define DTENSOR_TENSOR_AUTOGRAD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// A bucket of gradients that is worth a collective (BackwardOptions::bucket_bytes).
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

struct BackwardOptions {
  // The gradient of `loss`, a constant of its shape, type and mesh, in any layout but a Partial one
  // of another op than sum or avg. Undefined: 1, for a loss of one element.
  DistributedTensor gradient = {};
  // The operators that are walked may be walked again, and keep what they saved.
  bool retain_graph = false;
  // For Backward() only. If above 0, gradients of leaves are reduced during the backward pass, in
  // buckets of this many bytes, with the same bits as ReduceGradients afterwards. A complete
  // gradient is put into the bucket of the axes it is reduced over; a full bucket is reduced in one
  // collective, which runs while Backward goes on and is finished when the next one begins, or at
  // the end. Gradients that earlier Backward() calls left unreduced are included, so with gradient
  // accumulation set this for the last micro-batch alone.
  int64_t bucket_bytes = 0;
  // Of GradientsOf(): what `loss` does not depend on has an undefined gradient, and is no error.
  bool allow_unused = false;
};

// d loss / d leaf, added to grad() of every leaf that required gradients when an operator read it.
// Collective. `loss` has one element, or comes with its gradient, and a floating type; a loss that
// is Partial stands for its sum. The tape is consumed, unless it is retained. Errors, all before
// anything runs: kInvalidArgument for an undefined loss, another shape or type, one that is Partial
// by another op than sum or avg, a gradient that does not fit it, or a negative number of bytes;
// kFailedPrecondition when nothing was recorded, and when an operator without a backward made
// floats of floats that want a gradient, and these led to the loss, naming it; when an operator
// that led to the loss was walked by an earlier Backward that did not retain it, or when a tensor
// that backward needs was written to after an operator read it; when a leaf has a gradient that was
// redistributed in place. Then, in the middle, what is refused by a function that runs again
// (recompute.h), a gradient's redistribution that a cap refuses
// (RedistributionOptions::max_extra_bytes), and failures. Gradients of leaves are stored at the
// end, all or none: after any error they are what they were before. After one in the middle, what
// was walked until then is consumed, unless the tape is retained.
absl::Status Backward(const TensorOr& loss, const BackwardOptions& options = {});

// d loss / d tensor for each of `tensors`: leaves that require gradients, or results of recorded
// operators (and what was redistributed from these, whose gradient is the source's). One may be
// `loss` itself, or stand there twice. grad() of leaves stays as it is. Collective. Only operators
// between `loss` and the tensors are walked. A gradient may lie elsewhere than its tensor, as
// grad() may: Redistribute() it.
// Errors: as Backward, of these operators alone; and kInvalidArgument for a tensor that is
// undefined, of another Context, or wants no gradient, kFailedPrecondition for one that `loss` does
// not depend on; all before anything runs. An operator that an earlier Backward walked is refused
// if it may have led to one of the tensors.
absl::StatusOr<std::vector<DistributedTensor>> GradientsOf(
    const TensorOr& loss, absl::Span<const DistributedTensor> tensors,
    const BackwardOptions& options = {});

struct ReduceGradientsOptions {
  // Gradients that are kept in f32 for a bf16 or f16 leaf (set_grad_dtype) are reduced as they are.
  // With this their terms are rounded to the leaf's type first: half the bytes. The sums are f32.
  bool terms_in_leaf_dtype = false;
};

// Brings each leaf's gradient to the leaf's own layout: those over the same axes in one collective.
// Terms of 16 bits are added up in f32 and their sum is rounded once, to the gradient's type.
// Leaves without a gradient are passed over. Optimizers require it. Collective: the same leaves in
// the same order on every rank. Errors: kInvalidArgument for an undefined leaf, or leaves of two
// Contexts, and kFailedPrecondition for a gradient that was redistributed in place, before anything
// moves; failures.
absl::Status ReduceGradients(absl::Span<const DistributedTensor> leaves,
                             const ReduceGradientsOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_AUTOGRAD_H_
