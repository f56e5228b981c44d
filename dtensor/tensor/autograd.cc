#include "dtensor/tensor/autograd.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/lineage.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tape.h"
#include "dtensor/tensor/tape_walk.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {
namespace {

absl::Status CheckGradient(absl::string_view who, const Spec& loss, const DistributedTensor& given,
                           const Context& context) {
  const Spec& spec = given.spec();
  if (&given.context() != &context) {
    return InvalidArgument({who, ": the loss and its gradient belong to two Contexts"});
  }
  if (spec.shape != loss.shape || spec.dtype != loss.dtype || spec.mesh() != loss.mesh()) {
    return InvalidArgument({who, ": the gradient is ", spec.ToString(), " where the loss is ",
                            loss.ToString(), "; give it the same shape, type and mesh"});
  }
  if (ReducesByAnotherOpThanSum(spec.layout, Layout::Replicated(spec.mesh(), spec.ndim()))) {
    return NoGradientPasses(who, "the gradient of the loss", spec);
  }
  return absl::OkStatus();
}

absl::Status CheckLoss(absl::string_view who, const TensorOr& loss,
                       const BackwardOptions& options) {
  if (!loss.ok()) return loss.status();
  if (!loss->defined()) return InvalidArgument({who, ": the loss is undefined"});
  const Spec& spec = loss->spec();
  const bool given = options.gradient.defined();
  if (options.bucket_bytes < 0) {
    return InvalidArgument({who, ": a bucket of ", absl::StrCat(options.bucket_bytes),
                            " bytes cannot be; take 0 for none, or more"});
  }
  if ((!given && NumElements(spec.shape) != 1) || !IsFloat(spec.dtype)) {
    return InvalidArgument({who, ": the loss must be one floating number, got ", spec.ToString(),
                            "; take its Sum or Mean first, or give its gradient"});
  }
  if (ReducesByAnotherOpThanSum(spec.layout, Layout::Replicated(spec.mesh(), spec.ndim()))) {
    return NoGradientPasses(who, "the loss", spec);
  }
  if (given) DT_RETURN_IF_ERROR(CheckGradient(who, spec, options.gradient, loss->context()));
  const bool is_recorded = EdgeOf(loss->impl()).wanted();
  if (const OpDef* stopped_by = loss->impl()->stopped_by; stopped_by != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        who,
        is_recorded ? ": no gradient reaches part of what led to the loss: the operator "
                    : ": no gradient reaches what led to the loss: the operator ",
        stopped_by->name,
        stopped_by->differentiable() ? " gives its integers no gradient" : " has no backward",
        is_recorded ? "; Detach() what it is given, if that is a constant" : ""));
  }
  if (is_recorded) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": nothing was recorded; set_requires_grad(true) on the parameters, and ",
                   "keep recording on"));
}

// The gradient that arrives at the loss: the given one, or 1.
absl::StatusOr<Contribution> FirstGradient(const DistributedTensor& loss,
                                           const DistributedTensor& given) {
  Context& context = loss.context();
  if (given.defined()) {
    DT_RETURN_IF_ERROR(Settle(*given.impl()));
    return Contribution{given.impl()->spec, given.impl()->local, false};
  }
  DT_ASSIGN_OR_RETURN(SpecPtr dual,
                      context.Intern(loss.layout().Dual(), loss.shape(), loss.dtype()));
  DT_ASSIGN_OR_RETURN(Tensor one, internal::NewLocal(context, dual.get()));
  DT_RETURN_IF_ERROR(kernels::Fill(context.device(), one, 1));
  return Contribution{std::move(dual), std::move(one), true};
}

Tape MakeTape(absl::string_view who, const DistributedTensor& loss, const BackwardOptions& options,
              TapeWalk walk, bool defers = false) {
  uint64_t lineage = loss.impl()->lineage.id;
  if (options.gradient.defined()) {
    lineage = MixLineage(lineage, options.gradient.impl()->lineage.id);
  }
  return Tape(
      loss.context(),
      {who, lineage, loss.spec().mesh_digest, options.retain_graph, options.bucket_bytes, defers},
      std::move(walk));
}

absl::StatusOr<std::vector<Edge>> EdgesOf(const DistributedTensor& loss,
                                          absl::Span<const DistributedTensor> tensors) {
  std::vector<Edge> edges;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string tensor = absl::StrCat("GradientsOf: tensor ", i);
    if (!tensors[i].defined()) return InvalidArgument({tensor, " is undefined"});
    if (&tensors[i].context() != &loss.context()) {
      return InvalidArgument({tensor, " belongs to another Context than the loss"});
    }
    edges.push_back(EdgeOf(tensors[i].impl()));
    if (edges.back().wanted()) continue;
    return InvalidArgument({tensor, ", ", tensors[i].ToString(), ", wants no gradient; ",
                            "set_requires_grad(true) before it is used"});
  }
  return edges;
}

}  // namespace

absl::Status Backward(const TensorOr& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(CheckLoss("Backward", loss, options));
  const Edge root = EdgeOf(loss->impl());
  DT_ASSIGN_OR_RETURN(TapeWalk walk, TapeWalk::ToLeaves("Backward", root));
  DT_ASSIGN_OR_RETURN(Contribution first, FirstGradient(*loss, options.gradient));
  Tape tape = MakeTape("Backward", *loss, options, std::move(walk));
  DT_RETURN_IF_ERROR(tape.Run(root, std::move(first)));
  return tape.Store();
}

DeferredGradients::DeferredGradients() = default;
DeferredGradients::~DeferredGradients() = default;
DeferredGradients::DeferredGradients(DeferredGradients&&) noexcept = default;
DeferredGradients& DeferredGradients::operator=(DeferredGradients&&) noexcept = default;
DeferredGradients::DeferredGradients(std::unique_ptr<Tape> tape) : tape_(std::move(tape)) {}

absl::Status DeferredGradients::Finish() {
  if (tape_ == nullptr) return status_;
  const std::unique_ptr<Tape> tape = std::move(tape_);
  status_ = tape->RunDeferred();
  if (status_.ok()) status_ = tape->Store();
  return status_;
}

absl::StatusOr<DeferredGradients> BackwardForInputs(const TensorOr& loss,
                                                    const BackwardOptions& options) {
  constexpr absl::string_view kWho = "BackwardForInputs";
  DT_RETURN_IF_ERROR(CheckLoss(kWho, loss, options));
  if (options.retain_graph) {
    return InvalidArgument({kWho, ": retain_graph keeps what operators saved, which Finish() ",
                            "uses up; call Backward, or leave it out"});
  }
  const Edge root = EdgeOf(loss->impl());
  DT_ASSIGN_OR_RETURN(TapeWalk walk, TapeWalk::ToLeaves(kWho, root));
  DT_ASSIGN_OR_RETURN(Contribution first, FirstGradient(*loss, options.gradient));
  first.local = first.local.Borrow();  // a program may write to its gradient before Finish()
  first.owned = false;
  // Other ranks may call Backward at the same place: exchanges have one name.
  auto tape = std::make_unique<Tape>(
      MakeTape("Backward", *loss, options, std::move(walk), /*defers=*/true));
  DT_RETURN_IF_ERROR(tape->Run(root, std::move(first)));
  return DeferredGradients(std::move(tape));
}

absl::StatusOr<std::vector<DistributedTensor>> GradientsOf(
    const TensorOr& loss, absl::Span<const DistributedTensor> tensors,
    const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(CheckLoss("GradientsOf", loss, options));
  DT_ASSIGN_OR_RETURN(const std::vector<Edge> targets, EdgesOf(*loss, tensors));
  const Edge root = EdgeOf(loss->impl());
  DT_ASSIGN_OR_RETURN(TapeWalk walk, TapeWalk::To("GradientsOf", root, targets));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (options.allow_unused || walk.Reaches(targets[i])) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("GradientsOf: the loss does not depend on tensor ", i, ", ",
                     tensors[i].ToString(), "; leave it out, or allow_unused"));
  }
  DT_ASSIGN_OR_RETURN(Contribution first, FirstGradient(*loss, options.gradient));
  BackwardOptions walked = options;
  walked.bucket_bytes = 0;  // nothing is stored, so nothing is reduced
  Tape tape = MakeTape("GradientsOf", *loss, walked, std::move(walk));
  if (tape.walk().Wants(root)) DT_RETURN_IF_ERROR(tape.Run(root, std::move(first)));
  std::vector<DistributedTensor> gradients;
  for (size_t i = 0; i < tensors.size(); ++i) {
    DT_ASSIGN_OR_RETURN(TensorImplPtr gradient, tape.GradientOf(targets[i], tensors[i].impl()));
    gradients.emplace_back(std::move(gradient));
  }
  return gradients;
}

}  // namespace dtensor
