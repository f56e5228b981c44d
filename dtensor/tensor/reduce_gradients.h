// Reducing gradients to their leaves' layouts: what Backward and ReduceGradients share. Only for
// autograd.
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

// A leaf and its gradient, or a tensor that will become its gradient.
struct LeafGradient {
  TensorImplPtr leaf;
  TensorImplPtr* gradient;
};

// Errors: kFailedPrecondition if the leaf's gradient was redistributed in place, so that its memory
// is gone. `leaf` may be null. `who` is what the user called.
absl::Status CheckGradientThere(absl::string_view who, const TensorImplPtr& leaf);

// How a leaf's gradient is reduced: what is sent, by which plan, and what it becomes.
struct GradientReduction {
  Tensor source;
  SpecPtr target;
  std::shared_ptr<const RankRedistributionPlan> plan;  // null: it has the leaf's layout already
};
absl::StatusOr<GradientReduction> ReductionOf(const TensorImpl& leaf, const TensorImpl& gradient,
                                              const ReduceGradientsOptions& options = {});

// Brings the gradients to the leaves' layouts. Those that are reduced over the same axes share one
// collective. Errors: failures.
absl::Status ReduceToLeaves(absl::Span<const LeafGradient> all, absl::string_view who,
                            const ReduceGradientsOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REDUCE_GRADIENTS_H_
