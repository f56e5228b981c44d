// What Backward and ReduceGradients reduce. For autograd alone.
#ifndef DTENSOR_TENSOR_REDUCE_GRADIENTS_H_
#define DTENSOR_TENSOR_REDUCE_GRADIENTS_H_

#include "absl/status/status.h"
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

// Brings the gradients to the leaves' layouts: those over the same axes in one collective. Errors:
// failures.
absl::Status ReduceToLeaves(absl::Span<const LeafGradient> all, absl::string_view who,
                            const ReduceGradientsOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REDUCE_GRADIENTS_H_
