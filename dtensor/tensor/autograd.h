// Gradients: an eager tape, walked backward in reverse order of creation, which is the same on
// every rank.
//
// A redistribution computes the identity, so it is not recorded on the tape: the gradient of its
// result is the gradient of its source. Contributions to one tensor's gradient may arrive in
// different layouts. Those of one layout are added where they are, and they are redistributed only
// when an operator needs the sum. So the gradients of q, k and v with respect to their common input
// are added first and need one reduce-scatter, and a parameter's gradient stays Partial until
// ReduceGradients; those of a gather group (gather_group.h) that shards gradients are reduced
// during Backward, when the last of the group has arrived.
//
// A redistribution to another mesh is recorded: what arrives for its result is added up on that
// mesh, and the sum is moved back once.
#ifndef DTENSOR_TENSOR_AUTOGRAD_H_
#define DTENSOR_TENSOR_AUTOGRAD_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

class Tape;  // tape.h

// A good size for BackwardOptions::bucket_bytes: a bucket large enough to be worth a collective.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

struct BackwardOptions {
  // The gradient of `loss`, which is treated as a constant. It has the shape, type and mesh of
  // `loss`, and any layout except one that is Partial with another op than sum or avg. Undefined:
  // 1, for a loss of one element.
  DistributedTensor gradient = {};
  // Keeps what operators saved, so that another Backward may walk the same operators.
  bool retain_graph = false;
  // For Backward() only. If above 0, gradients of leaves are reduced during the backward pass, in
  // buckets of this many bytes, with the same bits as ReduceGradients afterwards. A complete
  // gradient is put into the bucket of the axes it is reduced over; a full bucket is reduced in one
  // collective, which runs while Backward goes on and is finished when the next one begins, or at
  // the end. Gradients that earlier Backward() calls left unreduced are included, so with gradient
  // accumulation set this for the last micro-batch alone.
  int64_t bucket_bytes = 0;
  // For GradientsOf() only: a tensor on which `loss` does not depend gets an undefined gradient
  // instead of an error.
  bool allow_unused = false;
};

// Computes d loss / d leaf and adds it to grad() of every leaf that required gradients when an
// operator read it. Collective. `loss` has a floating type, and one element unless its gradient is
// given; if it is Partial, its reduced value is meant. The tape is consumed, unless it is retained.
//
// Errors before anything runs: kInvalidArgument for an undefined loss, another shape or type, a
// loss that is Partial with another op than sum or avg, a gradient that does not fit it, or a
// negative number of bytes. kFailedPrecondition if nothing was recorded; if an operator without a
// backward, which is named, computed floats that led to the loss from floats that want a gradient;
// if an operator that led to the loss was walked by an earlier Backward that did not retain it; if
// a tensor that backward needs was written to after an operator read it; if a leaf has a gradient
// that was redistributed in place. Errors on the way: those of a function that runs again
// (recompute.h), those of a gradient's redistribution that exceeds the cap
// (RedistributionOptions::max_extra_bytes), and failures. Gradients of leaves are stored at the
// end, all or none: after any error they are what they were before. After an error on the way, the
// operators walked until then are consumed, unless the tape is retained.
absl::Status Backward(const TensorOr& loss, const BackwardOptions& options = {});

// The gradients of leaves that BackwardForInputs has put off. Belongs to the Context's thread, and
// the Context outlives it.
class DeferredGradients {
 public:
  DeferredGradients();  // of nothing
  ~DeferredGradients();
  DeferredGradients(DeferredGradients&&) noexcept;
  DeferredGradients& operator=(DeferredGradients&&) noexcept;

  // Computes them, and adds to grad() of the leaves all that Backward would have added: the same
  // bits, provided that what was put off earlier is finished earlier. Later calls do nothing, and
  // return the same. Collective over the ranks that hold the leaves: what operators read is
  // gathered again, and gradients are reduced, as Backward does. Errors: as those of Backward for
  // the leaves, which are then unchanged; also kFailedPrecondition, before anything runs, if a
  // tensor that is still needed was written to since.
  absl::Status Finish();

 private:
  friend absl::StatusOr<DeferredGradients> BackwardForInputs(const TensorOr&,
                                                             const BackwardOptions&);
  explicit DeferredGradients(std::unique_ptr<Tape> tape);
  std::unique_ptr<Tape> tape_;
  absl::Status status_;
};

// The first part of Backward; Finish() of the result is the other. The gradients of activations,
// for which other ranks wait, are computed now. Put off are those of leaves, such as weights, that
// an operator computes by themselves (OpDef::separate_gradients: MatMul, Linear, Einsum and what is
// made of them). grad() of all leaves is unchanged until Finish(); if the result is dropped
// without it, no leaf gets a gradient. Until then it keeps what these operators read, and the
// gradients of their results. Collective. `options`: as Backward's; retain_graph must be false, and
// bucket_bytes is for Finish(). Errors: as Backward; kInvalidArgument for retain_graph.
absl::StatusOr<DeferredGradients> BackwardForInputs(const TensorOr& loss,
                                                    const BackwardOptions& options = {});

// Returns d loss / d tensor for each of `tensors`, as torch.autograd.grad. They are leaves that
// require gradients, or results of recorded operators (or redistributions of such results on their
// mesh, whose gradient is the source's; a redistribution to another mesh has a gradient of its own,
// there). `loss` itself may be among them, and a tensor may be given twice. grad() of leaves does
// not change. Collective. Only operators between `loss` and the tensors are walked. A gradient may
// have another layout than its tensor, as grad() may: Redistribute() it.
// Errors: as Backward, for these operators alone; also kInvalidArgument for a tensor that is
// undefined, of another Context, or wants no gradient, and kFailedPrecondition for one that `loss`
// does not depend on, before anything runs. An operator that an earlier Backward walked is refused
// if it may have led to one of the tensors.
absl::StatusOr<std::vector<DistributedTensor>> GradientsOf(
    const TensorOr& loss, absl::Span<const DistributedTensor> tensors,
    const BackwardOptions& options = {});

struct ReduceGradientsOptions {
  // By default, gradients that are kept in f32 for a bf16 or f16 leaf (set_grad_dtype) are sent in
  // f32. With this, their terms are rounded to the leaf's type first, which halves the bytes. The
  // sums are f32 either way.
  bool terms_in_leaf_dtype = false;
};

// Brings each leaf's gradient to the leaf's own layout. Gradients that are reduced over the same
// axes share one collective. Terms of 16 bits are added up in f32 and their sum is rounded once, to
// the gradient's type. Leaves without a gradient are skipped. Optimizers require it: call it before
// each step. Collective: the same leaves in the same order on every rank. Errors before anything
// moves:
// kInvalidArgument for an undefined leaf, or leaves of two Contexts; kFailedPrecondition for a
// gradient that was redistributed in place. Then failures.
absl::Status ReduceGradients(absl::Span<const DistributedTensor> leaves,
                             const ReduceGradientsOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_AUTOGRAD_H_
