// What Backward and ReduceGradients reduce. For autograd alone.
#ifndef DTENSOR_TENSOR_REDUCE_GRADIENTS_H_
#define DTENSOR_TENSOR_REDUCE_GRADIENTS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

// A leaf and its gradient, or what will be.
struct LeafGradient {
  TensorImplPtr leaf;
  TensorImplPtr* gradient;
};

// Errors: kFailedPrecondition where the leaf, which may be null, has a gradient that was
// redistributed in place: a user may have given its memory away. `who` is what the user called.
absl::Status CheckGradientThere(absl::string_view who, const TensorImplPtr& leaf);

// What travels of a leaf's gradient, how, and what it becomes.
struct GradientReduction {
  Tensor source;
  SpecPtr target;
  std::shared_ptr<const RankRedistributionPlan> plan;  // null: it is there already
};
absl::StatusOr<GradientReduction> ReductionOf(const TensorImpl& leaf, const TensorImpl& gradient,
                                              const ReduceGradientsOptions& options = {});

// Brings the gradients to the leaves' layouts: those over the same axes in one collective. Errors:
// failures.
absl::Status ReduceToLeaves(absl::Span<const LeafGradient> all, absl::string_view who,
                            const ReduceGradientsOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REDUCE_GRADIENTS_H_
