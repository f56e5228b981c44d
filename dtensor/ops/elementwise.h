// Shared by the operators that work element by element, for the sources of this folder.
#ifndef DTENSOR_OPS_ELEMENTWISE_H_
#define DTENSOR_OPS_ELEMENTWISE_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor::internal {

// --- Operators that broadcast: "..., ... -> ...".

// x with this shape: a reference to x itself, or a view. Copying the handle instead would cost each
// dispatch four atomic operations.
class Broadcast {
 public:
  Broadcast(const Tensor& x, absl::Span<const int64_t> shape) : x_(x) {
    if (x.shape() != shape) view_ = x.BroadcastTo(shape);
  }
  operator const Tensor&() const { return view_ ? *view_ : x_; }

 private:
  const Tensor& x_;
  std::optional<Tensor> view_;
};

// Writes the gradient of operand i. make(out) writes it as if the operand had the result's shape;
// then it is summed over the dimensions that were broadcast.
template <typename Make>
absl::Status WriteGradient(const GradCall& call, int i, Make&& make) {
  const Tensor& dy = call.result_gradients[0];
  const Tensor& gradient = call.gradients[i];
  if (gradient.shape() == dy.shape()) return make(gradient);
  DT_ASSIGN_OR_RETURN(const Tensor whole,
                      Tensor::Empty(call.device(), gradient.dtype(), dy.shape()));
  DT_RETURN_IF_ERROR(make(whole));
  return SumToShape(call.device(), whole, gradient);
}

template <kernels::BinaryOp kOp>
absl::Status BinaryForward(const OpCall& call) {
  const Tensor& out = call.results[0];
  return kernels::Binary(call.device(), kOp, Broadcast(call.operands[0], out.shape()),
                         Broadcast(call.operands[1], out.shape()), out);
}

// Computes both gradients with kernels::BinaryGrad, from both operands.
template <kernels::BinaryOp kOp>
absl::Status BinaryBackward(const GradCall& call) {
  const Tensor& dy = call.result_gradients[0];
  const Tensor a = Broadcast(call.operands[0], dy.shape());
  const Tensor b = Broadcast(call.operands[1], dy.shape());
  for (int i = 0; i < 2; ++i) {
    if (!call.wants(i)) continue;
    DT_RETURN_IF_ERROR(WriteGradient(call, i, [&](const Tensor& out) {
      return kernels::BinaryGrad(call.device(), kOp, i, a, b, dy, out);
    }));
  }
  return absl::OkStatus();
}

// --- Functions of one operand.

template <kernels::UnaryOp kOp>
absl::Status UnaryForward(const OpCall& call) {
  return kernels::Unary(call.device(), kOp, call.operands[0], call.results[0]);
}

template <kernels::UnaryOp kOp>
absl::Status UnaryBackward(const GradCall& call) {
  const Tensor& saved = kernels::GradReadsResult(kOp) ? call.results[0] : call.operands[0];
  return kernels::UnaryGrad(call.device(), kOp, saved, call.result_gradients[0], call.gradients[0]);
}

// An operator on floats that is just this kernel.
template <kernels::UnaryOp kOp>
constexpr OpDef UnaryFunction(const char* name, RuleLinearity linearity) {
  constexpr bool kSavesResult = kernels::GradReadsResult(kOp);
  return {.name = name,
          .rule = "... -> ...",
          .linearity = linearity,
          .types = TypeSet::Floats(),
          .every_device = {UnaryForward<kOp>, UnaryBackward<kOp>},
          .saved_operands = kSavesResult ? 0b0u : 0b1u,
          .saved_results = kSavesResult ? 0b1u : 0b0u};
}

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_ELEMENTWISE_H_
