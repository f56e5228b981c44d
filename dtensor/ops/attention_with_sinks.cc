#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace {

constexpr absl::string_view kName = "AttentionWithSinks";

absl::Status CheckSinks(const TensorOr& q, const TensorOr& sinks) {
  for (const TensorOr* const x : {&q, &sinks}) {
    DT_RETURN_IF_ERROR(internal::CheckDefined(kName, *x));
  }
  if (&q->context() != &sinks->context() || q->mesh() != sinks->mesh()) {
    return InvalidArgument({kName, ": sinks are on ", sinks->mesh().ToString(), " where q is on ",
                            q->mesh().ToString(), "; bring both to one mesh of one Context"});
  }
  if (q->ndim() != 4) return absl::OkStatus();  // Attention refuses it
  if (sinks->ndim() == 1 && sinks->shape()[0] == q->shape()[2] && sinks->dtype() == q->dtype()) {
    return absl::OkStatus();
  }
  return InvalidArgument({kName, ": sinks are ", sinks->ToString(), " where q is ", q->ToString(),
                          "; give one for each of its ", absl::StrCat(q->shape()[2]),
                          " heads, of its type"});
}

}  // namespace

// With the sink in the sum of exponentials, the weights of keys are multiplied by
// exp(lse) / (exp(lse) + exp(sink)). Sinks, queries and keys get gradients of that through lse.
TensorOr AttentionWithSinks(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                            const TensorOr& sinks, const AttentionOptions& options) {
  DT_RETURN_IF_ERROR(CheckSinks(q, sinks));
  DT_ASSIGN_OR_RETURN(const AttentionResults attended, AttentionWithLse(q, k, v, options));
  const Dims& shape = attended.o.shape();
  const TensorOr column = Reshape(Cast(sinks, attended.lse.dtype()), {shape[2], 1});
  const TensorOr share = Transpose(Sigmoid(Sub(attended.lse, column)), 1, 2);
  return Mul(attended.o,
             Cast(Reshape(share, {shape[0], shape[1], shape[2], 1}), attended.o.dtype()));
}

}  // namespace dtensor
