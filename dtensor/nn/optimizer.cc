#include "dtensor/nn/optimizer.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/optimizer.h"
#include "dtensor/tensor/autograd.h"

namespace dtensor {
namespace {

absl::Status CheckReduced(absl::string_view who, const DistributedTensor& parameter) {
  const DistributedTensor grad = parameter.grad();
  if (!grad.defined() || &grad.spec() == &parameter.spec()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": the gradient of a parameter ", parameter.ToString(), " lies as ",
                   grad.layout().ToString(), "; call ReduceGradients before the step"));
}

absl::StatusOr<Tensor> ZeroState(const DistributedTensor& parameter) {
  Context& context = parameter.context();
  auto state = Tensor::Empty(context.device(), AccumulatorOf(parameter.dtype()),
                             parameter.spec().local_shape);
  if (!state.ok()) return context.communicator().Fail(state.status());
  DT_RETURN_IF_ERROR(kernels::Fill(context.device(), *state, 0));
  return state;
}

absl::Status CheckScale(const DistributedTensor& scale, const DistributedTensor& parameter) {
  const DType wanted = AccumulatorOf(parameter.dtype());
  if (scale.dtype() == wanted && scale.ndim() == 0 && scale.layout().is_replicated() &&
      &scale.context() == &parameter.context()) {
    return absl::OkStatus();
  }
  return InvalidArgument({"AdamW: grad_scale is ", scale.ToString(), " where a parameter ",
                          parameter.ToString(), " needs a replicated ", ToString(wanted),
                          " scalar of its Context; take it from ClipByGlobalNorm, or Cast it"});
}

// Each is defined, of one Context, and listed once.
absl::Status CheckDistinct(absl::string_view who, absl::Span<const DistributedTensor> parameters) {
  absl::flat_hash_map<const TensorImpl*, size_t> index;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined()) {
      return InvalidArgument({who, ": parameter ", absl::StrCat(i), " is undefined"});
    }
    if (&parameters[i].context() != &parameters[0].context()) {
      return InvalidArgument({who, ": parameters 0 and ", absl::StrCat(i),
                              " belong to two Contexts; give each Context its own call"});
    }
    const auto [it, fresh] = index.try_emplace(parameters[i].impl().get(), i);
    if (fresh) continue;
    return InvalidArgument({who, ": parameters ", absl::StrCat(it->second), " and ",
                            absl::StrCat(i), " are one tensor ", parameters[i].ToString(),
                            "; list it once, as Module::Parameters does"});
  }
  return absl::OkStatus();
}

// Also: some parameter has a gradient.
absl::Status CheckClippable(absl::Span<const DistributedTensor> parameters) {
  DT_RETURN_IF_ERROR(CheckDistinct("ClipByGlobalNorm", parameters));
  const DistributedTensor* first = nullptr;  // that has a gradient
  for (const DistributedTensor& parameter : parameters) {
    DT_RETURN_IF_ERROR(CheckReduced("ClipByGlobalNorm", parameter));
    if (!parameter.grad().defined()) continue;
    if (first == nullptr) first = &parameter;
    if (AccumulatorOf(parameter.dtype()) != AccumulatorOf(first->dtype())) {
      return InvalidArgument({"ClipByGlobalNorm: f64 gradients and narrower ones have no common ",
                              "norm (", first->ToString(), " and ", parameter.ToString(),
                              "); clip them apart"});
    }
  }
  if (first != nullptr) return absl::OkStatus();
  return InvalidArgument({"ClipByGlobalNorm: no parameter has a gradient; call Backward first"});
}

}  // namespace

absl::StatusOr<AdamW> AdamW::Create(std::vector<DistributedTensor> parameters,
                                    const AdamWOptions& options) {
  AdamW adamw;
  adamw.options_ = options;
  DT_RETURN_IF_ERROR(CheckDistinct("AdamW", parameters));
  for (const DistributedTensor& parameter : parameters) {
    if (!parameter.requires_grad() || !IsFloat(parameter.dtype())) {
      return InvalidArgument(
          {"AdamW: optimizes floating leaves that require gradients, got ", parameter.ToString()});
    }
    if (!parameter.local().is_contiguous()) {
      return InvalidArgument({"AdamW: the local data of a parameter ", parameter.ToString(),
                              " is a strided view; make it row-major"});
    }
    DT_ASSIGN_OR_RETURN(Tensor m, ZeroState(parameter));
    DT_ASSIGN_OR_RETURN(Tensor v, ZeroState(parameter));
    adamw.m_.push_back(std::move(m));
    adamw.v_.push_back(std::move(v));
  }
  adamw.parameters_ = std::move(parameters);
  return adamw;
}

absl::Status AdamW::Step(double lr, const DistributedTensor& grad_scale) {
  for (const DistributedTensor& parameter : parameters_) {
    DT_RETURN_IF_ERROR(CheckReduced("AdamW", parameter));
    if (!grad_scale.defined() || !parameter.grad().defined()) continue;
    DT_RETURN_IF_ERROR(CheckScale(grad_scale, parameter));
  }
  ++step_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DistributedTensor grad = parameters_[i].grad();
    if (!grad.defined()) continue;
    DT_RETURN_IF_ERROR(BeforeWrite(parameters_[i]));
    const kernels::AdamWStep step = {
        .lr = lr,
        .beta1 = options_.beta1,
        .beta2 = options_.beta2,
        .eps = options_.eps,
        .weight_decay = parameters_[i].ndim() >= 2 ? options_.weight_decay : 0,
        .step = step_};
    Context& context = parameters_[i].context();
    DT_ASSIGN_OR_RETURN(const Tensor gradient, kernels::Contiguous(context.device(), grad.local()));
    absl::Status status =
        kernels::AdamW(context.device(), step, parameters_[i].local(), gradient, m_[i], v_[i],
                       grad_scale.defined() ? grad_scale.local() : Tensor());
    if (!status.ok()) return context.communicator().Fail(status);
  }
  return absl::OkStatus();
}

void AdamW::ClearGradients() {
  for (DistributedTensor& parameter : parameters_) parameter.ClearGrad();
}

absl::StatusOr<ClipResult> ClipByGlobalNorm(absl::Span<const DistributedTensor> parameters,
                                            double max_norm) {
  if (parameters.empty()) return InvalidArgument({"ClipByGlobalNorm: there are no parameters"});
  DT_RETURN_IF_ERROR(CheckClippable(parameters));
  Context& context = parameters[0].context();
  const NoGrad no_grad(context);
  // One sum for each layout that sums of squares come in: Partial on the axes that shard the
  // gradient, so a gradient that is replicated on an axis counts once there.
  std::vector<TensorOr> sums;
  for (const DistributedTensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    DT_ASSIGN_OR_RETURN(const DistributedTensor squares, SumOfSquares(parameter.grad()));
    bool added = false;
    for (TensorOr& sum : sums) {
      if (&sum->spec() != &squares.spec()) continue;
      DT_ASSIGN_OR_RETURN(sum, Add(sum, squares));
      added = true;
      break;
    }
    if (!added) sums.push_back(squares);
  }
  TensorOr total;
  for (const TensorOr& sum : sums) {
    DT_ASSIGN_OR_RETURN(DistributedTensor whole,
                        sum->Redistribute(Layout::Replicated(sum->mesh(), 0)));
    total = total.ok() && total->defined() ? Add(total, whole) : TensorOr(std::move(whole));
    DT_RETURN_IF_ERROR(total.status());
  }
  ClipResult result;
  DT_ASSIGN_OR_RETURN(result.norm, Full(context, total->layout(), {}, total->dtype(), 0));
  DT_ASSIGN_OR_RETURN(result.scale, Full(context, total->layout(), {}, total->dtype(), 1));
  absl::Status status = kernels::ClipScale(context.device(), total->local(), max_norm,
                                           result.norm.local(), result.scale.local());
  if (!status.ok()) return context.communicator().Fail(status);
  return result;
}

}  // namespace dtensor
