#include "dtensor/nn/optim/optimizer.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/parameter_checks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/local_cast.h"

namespace dtensor {
namespace {

constexpr const char* kMaster = "master";
constexpr const char* kStep = "step";

absl::Status CheckParameter(absl::string_view who, const DistributedTensor& parameter) {
  if (!parameter.requires_grad() || !IsFloat(parameter.dtype())) {
    return InvalidArgument(
        {who, ": optimizes floating leaves that require gradients, got ", parameter.ToString(),
         "; leave out what is frozen (Parameter::trained is false, or requires_grad())"});
  }
  if (parameter.layout().is_partial()) {
    return InvalidArgument({who, ": a parameter ", parameter.ToString(), " is Partial, and a step ",
                            "of its terms is no step of their sum; Redistribute it first"});
  }
  return CheckWritable(who, parameter);
}

// `value` as a new tensor in the layout of `like`, row-major; a redistribution's result is a value.
TensorOr Placed(const DistributedTensor& value, const DistributedTensor& like) {
  Context& context = like.context();
  DT_ASSIGN_OR_RETURN(const DistributedTensor moved, value.Redistribute(like.layout()));
  auto local = kernels::Contiguous(context.device(), moved.local());
  if (!local.ok()) return context.communicator().Fail(local.status());
  return FromLocal(context, like.layout(), like.shape(), *std::move(local));
}

// The number of steps in `value`, on the ranks of its own mesh and on those of `like`. It is moved
// to the latter first, so that all of them refuse it alike. Blocks until it is known.
absl::StatusOr<int64_t> StepOf(absl::string_view who, const DistributedTensor& value,
                               const DistributedTensor& like) {
  if (!value.defined() || value.dtype() != DType::kI64 || value.ndim() != 0 ||
      &value.context() != &like.context()) {
    return InvalidArgument({who, "\"step\" is ", value.defined() ? value.ToString() : "undefined",
                            " where an i64 scalar of the parameter's Context is wanted"});
  }
  DT_ASSIGN_OR_RETURN(const DistributedTensor moved,
                      value.Redistribute(Layout::Replicated(like.mesh(), 0)));
  const DistributedTensor& mine = value.spec().on_mesh ? value : moved;
  if (!mine.spec().on_mesh) return 0;  // it is not used on this rank
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> step, ToGlobal<int64_t>(mine));
  constexpr int64_t kMostSteps = int64_t{1} << 62;  // it can still be counted up from here
  if (0 <= step[0] && step[0] <= kMostSteps) return step[0];
  return InvalidArgument(
      {who, "\"step\" is ", absl::StrCat(step[0]), "; it counts from 0, and up to 2^62"});
}

// Whether each rank of `other` is on `mesh`, too.
bool IsOnRanksOf(const DeviceMesh& mesh, const DeviceMesh& other) {
  for (int position = 0; position < other.size(); ++position) {
    if (!mesh.Contains(other.RankOf(position))) return false;
  }
  return true;
}

absl::Status CheckStateTensor(absl::string_view what, const DistributedTensor& value,
                              const DistributedTensor& like) {
  if (!value.defined()) return InvalidArgument({what, " is undefined"});
  if (&value.context() != &like.context()) {
    return InvalidArgument({what, " belongs to another Context than the parameter"});
  }
  if (value.shape() == like.shape() && value.dtype() == like.dtype()) return absl::OkStatus();
  return InvalidArgument({what, " is ", value.ToString(), " where ", like.ToString(),
                          " is wanted; Cast or Reshape it"});
}

void AddNumber(Digest& digest, double number) { digest.Add(std::bit_cast<int64_t>(number)); }

}  // namespace

bool Optimizer::Slot::has_master() const { return !names.empty() && names.back() == kMaster; }

absl::Status Optimizer::Init(absl::Span<const Group> groups) {
  std::vector<absl::Span<const DistributedTensor>> all;
  for (const Group& group : groups) all.push_back(group.parameters);
  DT_RETURN_IF_ERROR(CheckDistinct(name_, all));
  for (const Group& group : groups) {
    if (!std::isfinite(group.lr_scale) || group.lr_scale < 0) {
      return InvalidArgument(
          {name_, ": lr_scale is ", absl::StrCat(group.lr_scale), "; take a finite number >= 0"});
    }
    for (const DistributedTensor& parameter : group.parameters) {
      DT_RETURN_IF_ERROR(CheckParameter(name_, parameter));
      Context& context = parameter.context();
      const NoGrad no_grad(context);
      const DType dtype = AccumulatorOf(parameter.dtype());
      Slot slot{.lr_scale = group.lr_scale, .names = group.states};
      for (const double number : group.options) AddNumber(slot.options, number);
      for (size_t i = 0; i < group.states.size(); ++i) {
        DT_ASSIGN_OR_RETURN(slot.tensors.emplace_back(),
                            Full(context, parameter.layout(), parameter.shape(), dtype, 0));
      }
      if (group.master_weights && dtype != parameter.dtype()) {
        slot.names.push_back(kMaster);
        DT_ASSIGN_OR_RETURN(slot.tensors.emplace_back(), LocalCast(parameter, dtype));
      }
      index_[parameter.impl().get()] = parameters_.size();
      parameters_.push_back(parameter);
      slots_.push_back(std::move(slot));
    }
  }
  return absl::OkStatus();
}

absl::Status Optimizer::CheckScale(const DistributedTensor& scale,
                                   const DistributedTensor& parameter) const {
  const DType wanted = AccumulatorOf(parameter.dtype());
  if (scale.dtype() == wanted && scale.ndim() == 0 && scale.layout().is_replicated() &&
      &scale.context() == &parameter.context() && IsOnRanksOf(scale.mesh(), parameter.mesh())) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      {name_, ": grad_scale is ", scale.ToString(), " where a parameter ", parameter.ToString(),
       " needs a replicated ", ToString(wanted),
       " scalar of its Context that has its element on the parameter's ranks; take it from ",
       "ClipByGlobalNorm of this optimizer's parameters, Cast or Redistribute ", "it"});
}

absl::Status Optimizer::Step(double lr, const DistributedTensor& grad_scale) {
  if (!std::isfinite(lr)) {
    return InvalidArgument({name_, ": a learning rate of ", absl::StrCat(lr),
                            " would leave no weight a number; give a finite one"});
  }
  for (const DistributedTensor& parameter : parameters_) {
    DT_RETURN_IF_ERROR(CheckReduced(name_, parameter));
    if (!grad_scale.defined() || !parameter.grad().defined()) continue;
    DT_RETURN_IF_ERROR(CheckScale(grad_scale, parameter));
  }
  std::vector<size_t> indices;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad().defined()) indices.push_back(i);
  }
  DT_RETURN_IF_ERROR(Prepare(indices, grad_scale));
  for (const size_t i : indices) DT_RETURN_IF_ERROR(StepOne(i, lr, grad_scale));
  return absl::OkStatus();
}

absl::Status Optimizer::Prepare(absl::Span<const size_t>, const DistributedTensor&) {
  return absl::OkStatus();
}

absl::Status Optimizer::StepOne(size_t index, double lr, const DistributedTensor& grad_scale) {
  const DistributedTensor& parameter = parameters_[index];
  Context& context = parameter.context();
  Slot& slot = slots_[index];
  Update update{.index = index, .lr = lr * slot.lr_scale, .step = ++slot.step};
  Digest what = slot.options;
  AddNumber(what, update.lr);
  if (grad_scale.defined()) what.Add(static_cast<int64_t>(LineageOf(grad_scale)));
  DT_RETURN_IF_ERROR(BeforeWrite(parameter, what.value()));
  for (const DistributedTensor& tensor : slot.tensors) {
    DT_RETURN_IF_ERROR(BeforeWrite(tensor, what.value()));
  }
  if (!parameter.spec().on_mesh) return absl::OkStatus();  // other ranks write
  if (grad_scale.defined()) update.grad_scale = grad_scale.local();
  for (const DistributedTensor& tensor : slot.tensors) update.states.push_back(tensor.local());
  if (slot.has_master()) {
    update.master = update.states.back();
    update.states.pop_back();
  }
  absl::Status status = ApplyTo(parameter.local(), parameter.grad().local(), update);
  return status.ok() ? status : context.communicator().Fail(status);
}

absl::Status Optimizer::ApplyTo(const Tensor& parameter, const Tensor& gradient, Update& update) {
  Device& device = parameter.device();
  DT_ASSIGN_OR_RETURN(update.parameter, kernels::Contiguous(device, parameter));
  DT_ASSIGN_OR_RETURN(update.gradient, kernels::Contiguous(device, gradient));
  DT_RETURN_IF_ERROR(Apply(update));
  if (parameter.is_contiguous()) return absl::OkStatus();
  return kernels::Copy(device, update.parameter, parameter);
}

void Optimizer::ClearGradients() {
  for (DistributedTensor& parameter : parameters_) parameter.ClearGrad();
}

absl::StatusOr<size_t> Optimizer::IndexOf(absl::string_view call,
                                          const DistributedTensor& parameter) const {
  const auto it = parameter.defined() ? index_.find(parameter.impl().get()) : index_.end();
  if (it != index_.end()) return it->second;
  return InvalidArgument({name_, "::", call, ": ",
                          parameter.defined() ? parameter.ToString() : "an undefined tensor",
                          " is no parameter of this optimizer; take one of parameters()"});
}

absl::StatusOr<OptimizerState> Optimizer::State(const DistributedTensor& parameter) const {
  DT_ASSIGN_OR_RETURN(const size_t index, IndexOf("State", parameter));
  const Slot& slot = slots_[index];
  OptimizerState state;
  for (size_t i = 0; i < slot.tensors.size(); ++i) state[slot.names[i]] = slot.tensors[i];
  DT_ASSIGN_OR_RETURN(state[kStep],
                      Full(parameter.context(), Layout::Replicated(parameter.mesh(), 0), {},
                           DType::kI64, static_cast<double>(slot.step)));
  return state;
}

absl::Status Optimizer::SetState(const DistributedTensor& parameter, const OptimizerState& state) {
  DT_ASSIGN_OR_RETURN(const size_t index, IndexOf("SetState", parameter));
  Slot& slot = slots_[index];
  const std::string who = absl::StrCat(name_, "::SetState: ");
  const auto find = [&](const char* name) -> TensorOr {
    const auto it = state.find(name);
    if (it != state.end()) return it->second;
    return InvalidArgument({who, "there is no \"", name, "\"; give what State() has"});
  };
  for (size_t i = 0; i < slot.names.size(); ++i) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor value, find(slot.names[i]));
    DT_RETURN_IF_ERROR(
        CheckStateTensor(absl::StrCat(who, "\"", slot.names[i], "\""), value, slot.tensors[i]));
  }
  for (const auto& [name, value] : state) {
    if (name == kStep || absl::c_linear_search(slot.names, name)) continue;
    return InvalidArgument({who, "a parameter ", parameter.ToString(), " has no \"", name, "\""});
  }
  const NoGrad no_grad(parameter.context());
  DT_ASSIGN_OR_RETURN(const DistributedTensor step_tensor, find(kStep));
  DT_ASSIGN_OR_RETURN(const int64_t step, StepOf(who, step_tensor, parameter));
  std::vector<DistributedTensor> placed;
  for (size_t i = 0; i < slot.names.size(); ++i) {
    DT_ASSIGN_OR_RETURN(placed.emplace_back(), Placed(state.at(slot.names[i]), slot.tensors[i]));
  }
  slot.tensors = std::move(placed);
  slot.step = step;
  return absl::OkStatus();
}

}  // namespace dtensor
