// Attention with grouped queries: heads and batch may be sharded, sequences are whole.
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch.h"
#include "dtensor/ops.h"
#include "dtensor/ops_internal.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/attention.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace internal {
namespace {

absl::Status AttentionCheck(Specs operands, const Attrs&) {
  DT_RETURN_IF_ERROR(CheckFloats("Attention", operands));
  for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(CheckRank("Attention", operands, i, 4));
  const Dims& q = operands[0]->shape;
  const Dims& k = operands[1]->shape;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"Attention: ", why, " (q, k, v: ", SpecsText(operands), ")"});
  };
  if (k != operands[2]->shape) return refuse("k and v must have one shape [b, t, hkv, d]");
  if (q[0] != k[0]) return refuse("q and k must have one batch size");
  if (q[3] != k[3] || q[3] == 0) return refuse("q and k must have one head size d > 0");
  if (k[2] == 0 || q[2] % k[2] != 0) {
    return refuse(absl::StrCat(q[2], " query heads cannot share ", k[2],
                               " key heads evenly; choose hq as a multiple of hkv"));
  }
  return absl::OkStatus();
}

// attrs: ints {causal}, reals {scale, 0 for the usual one}.
double ScaleOf(const Attrs& attrs, const Tensor& q) {
  return attrs.reals[0] != 0 ? attrs.reals[0] : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

// The kernel reads heads as contiguous rows.
absl::StatusOr<Tensor> WithRows(Device& device, const Tensor& x) {
  if (x.strides()[3] == 1 || x.size(3) == 1) return x;
  return Contiguous(device, x);
}

struct Inputs {
  Tensor q, k, v;
};
absl::StatusOr<Inputs> Prepare(Device& device, absl::Span<const Tensor> operands) {
  Inputs out;
  DT_ASSIGN_OR_RETURN(out.q, WithRows(device, operands[0]));
  DT_ASSIGN_OR_RETURN(out.k, WithRows(device, operands[1]));
  DT_ASSIGN_OR_RETURN(out.v, WithRows(device, operands[2]));
  return out;
}

absl::Status AttentionForward(const OpCall& call) {
  if (call.results[0].numel() == 0) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const Inputs in, Prepare(call.device(), call.operands));
  return kernels::Attention(call.device(), in.q, in.k, in.v, ScaleOf(call.attrs(), in.q),
                            call.attrs().ints[0] != 0, call.results[0], call.results[1]);
}

// The kernel makes all three gradients; those that nobody wants go to scratch memory.
absl::Status AttentionBackward(const GradCall& call) {
  Device& device = call.device();
  absl::InlinedVector<Tensor, 3> gradients(call.gradients.begin(), call.gradients.end());
  for (int i = 0; i < 3; ++i) {
    if (call.wants(i)) continue;
    const Tensor& like = call.operands[i];
    DT_ASSIGN_OR_RETURN(gradients[i], Tensor::Empty(device, like.dtype(), like.shape()));
  }
  if (call.results[0].numel() == 0) {  // no query here: nothing reaches this rank's k and v
    for (const Tensor& gradient : gradients) DT_RETURN_IF_ERROR(kernels::Fill(device, gradient, 0));
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const Inputs in, Prepare(device, call.operands));
  DT_ASSIGN_OR_RETURN(const Tensor dout, WithRows(device, call.result_gradients[0]));
  return kernels::AttentionGrad(device, in.q, in.k, in.v, call.results[0], call.results[1], dout,
                                ScaleOf(call.attrs(), in.q), call.attrs().ints[0] != 0,
                                gradients[0], gradients[1], gradients[2]);
}

DType AttentionType(Specs operands, const Attrs&, int result) {
  return result == 0 ? operands[0]->dtype : AccumulatorOf(operands[0]->dtype);
}

}  // namespace

// The second result is the logarithm of each row's sum of exponentials, for backward.
const OpDef kAttentionOp = {
    .name = "Attention",
    .rule = "b s! (h g) d!, b t! h d!, b t! h d! -> b s! (h g) d!, b (h g) s!",
    .forward = AttentionForward,
    .backward = AttentionBackward,
    .saved_operands = 0b111,
    .saved_results = 0b11,
    .check = AttentionCheck,
    .result_dtype = AttentionType,
};

}  // namespace internal

TensorOr Attention(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                   const AttentionOptions& options) {
  return Dispatch(internal::kAttentionOp, {&q, &k, &v},
                  {.ints = {options.causal}, .reals = {options.scale}});
}

}  // namespace dtensor
