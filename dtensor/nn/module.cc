#include "dtensor/nn/module.h"

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {
namespace {

bool AreNames(absl::Span<const std::string> names) {
  const HashSet<absl::string_view> unique(names.begin(), names.end());
  return !names.empty() && unique.size() == names.size() && absl::c_all_of(names, IsName);
}

}  // namespace

std::string JoinPath(absl::string_view path, absl::string_view name) {
  return absl::StrCat(path, path.empty() || name.empty() ? "" : ".", name);
}

TensorOr Module::CallForOne(absl::Span<const TensorOr> operands) {
  DT_RETURN_IF_ERROR(CheckCount("operands", operands.size(), operands_));
  if (const absl::Status status = CheckCount("results", 1, results_); !status.ok()) {
    return InvalidArgument({status.message(), "; Call() returns all of them"});
  }
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, Call(operands));
  return std::move(results[0]);
}

TensorsOr Module::Call(absl::Span<const TensorOr> operands) {
  DT_RETURN_IF_ERROR(CheckCount("operands", operands.size(), operands_));
  std::vector<DistributedTensor> given;
  given.reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    DT_RETURN_IF_ERROR(CheckOperand(operands[i], i));
    given.push_back(*operands[i]);
  }
  DT_RETURN_IF_ERROR(CheckMaterialized());
  if (!recomputes_) return Run(given);
  for (size_t i = 0; i < given.size(); ++i) {  // here, so that they do not cross again in Backward
    DT_ASSIGN_OR_RETURN(given[i], AtMesh(given[i], static_cast<int>(i)));
  }
  const auto again = [this](absl::Span<const DistributedTensor> x) { return Run(x); };
  return Recompute(given, AsItTrains(again), recompute_options_);
}

TensorsOr Module::Run(absl::Span<const DistributedTensor> operands) {
  const WorkScope work(operands[0].context(), this, path_);
  std::vector<DistributedTensor> inputs;
  inputs.reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    DT_ASSIGN_OR_RETURN(DistributedTensor input,
                        AtEdge(operands[i], &ModuleEdge::input, static_cast<int>(i)));
    inputs.push_back(std::move(input));
  }
  const GatherScope scope(gather_group_.get());
  DT_RETURN_IF_ERROR(scope.status());
  TensorsOr results = ForwardAll(inputs);
  if (!results.ok()) return WithPath(results.status());
  DT_RETURN_IF_ERROR(CheckCount("results", results->size(), results_));
  for (size_t r = 0; r < results->size(); ++r) {
    DT_ASSIGN_OR_RETURN((*results)[r], Deliver((*results)[r], static_cast<int>(r)));
  }
  return results;
}

TensorOr Module::Deliver(const DistributedTensor& computed, int index) {
  if (!computed.defined()) return WithPath(InvalidArgument({"the module's result is undefined"}));
  if (index == 0 && !edges_.empty()) last_result_ = SpecPtr(&computed.spec());
  TensorOr y = AtEdge(computed, &ModuleEdge::output, index);
  if (!y.ok() || results_.size() > 1) return y;
  TensorOr finished = Finish(*y, computed.spec());
  return finished.ok() ? finished : WithPath(finished.status());
}

void Module::set_gather_group(std::shared_ptr<GatherGroup> group) {
  gather_group_ = std::move(group);
  if (gather_group_ != nullptr) gather_group_->set_scope(this, path_);
}

TensorOr Module::Forward(const DistributedTensor&) {
  return InvalidArgument({"the module has no Forward; override it, or ForwardAll"});
}

TensorsOr Module::ForwardAll(absl::Span<const DistributedTensor> operands) {
  if (operands.size() > 1) {
    return InvalidArgument(
        {"the module has no ForwardAll, which several operands need; override it"});
  }
  std::vector<DistributedTensor> results(1);
  DT_ASSIGN_OR_RETURN(results[0], Forward(operands[0]));
  return results;
}

TensorOr Module::Finish(const DistributedTensor& y, const Spec&) { return y; }

absl::Status Module::CheckOperand(const TensorOr& x, size_t index) const {
  DT_RETURN_IF_ERROR(x.status());
  if (x->defined()) return absl::OkStatus();
  if (operands_.size() == 1)
    return WithPath(InvalidArgument({"the module's operand is undefined"}));
  return WithPath(InvalidArgument({"the module's operand ", operands_[index], " is undefined"}));
}

absl::Status Module::CheckCount(absl::string_view what, size_t given,
                                const std::vector<std::string>& names) const {
  if (given == names.size()) return absl::OkStatus();
  return WithPath(InvalidArgument({"the module has ", absl::StrCat(names.size()), " ", what, " (",
                                   absl::StrJoin(names, ", "), "), not ", absl::StrCat(given)}));
}

absl::Status Module::CheckMaterialized() const {
  for (const OwnParameter& own : parameters_) {
    if (own.parameter->tensor.defined()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter ", JoinPath(path_, own.name),
        " has no memory; Materialize the model, or apply a plan to it, before it is called"));
  }
  return absl::OkStatus();
}

TensorOr Module::AtMesh(const DistributedTensor& x, int index) const {
  if (!mesh_.has_value()) return x;
  const WorkScope work(x.context(), this, path_);
  const TraceReason reason(x.context().tracer(), TraceCause::kEdgeInput, index);
  TensorOr moved = AtEdges(x, {}, &ModuleEdge::input, index, &*mesh_);
  return moved.ok() ? moved : WithPath(moved.status());
}

TensorOr Module::AtEdge(const DistributedTensor& x, std::optional<Placement> ModuleEdge::*side,
                        int index) const {
  const bool is_input = side == &ModuleEdge::input;
  const TraceReason reason(x.context().tracer(),
                           is_input ? TraceCause::kEdgeInput : TraceCause::kEdgeOutput, index);
  const DeviceMesh* const mesh = is_input && mesh_.has_value() ? &*mesh_ : nullptr;
  TensorOr moved = AtEdges(x, edges_, side, index, mesh);
  return moved.ok() ? moved : WithPath(moved.status());
}

absl::Status Module::WithPath(const absl::Status& status) const {
  if (path_.empty() || status.code() != absl::StatusCode::kInvalidArgument) return status;
  // An error of an inner module already names that module, whose path begins with this one's.
  absl::string_view rest = status.message();
  if (absl::ConsumePrefix(&rest, path_) && !rest.empty() && (rest[0] == '.' || rest[0] == ':')) {
    return status;
  }
  return absl::Status(status.code(), absl::StrCat(path_, ": ", status.message()));
}

void Module::VisitModules(const ModuleVisitor& visit) {
  HashSet<const Module*> seen;
  VisitNew("", seen, visit);
}

void Module::VisitNew(const std::string& path, HashSet<const Module*>& seen,
                      const ModuleVisitor& visit) {
  if (!seen.insert(this).second) return;
  visit(path, *this);
  for (auto& [name, child] : children_) child->VisitNew(JoinPath(path, name), seen, visit);
}

void Module::VisitParameters(const std::function<void(const std::string&, Parameter&)>& visit) {
  HashSet<const Parameter*> seen;
  VisitModules([&](const std::string& path, Module& module) {
    for (const OwnParameter& own : module.parameters_) {
      if (seen.insert(own.parameter.get()).second) visit(JoinPath(path, own.name), *own.parameter);
    }
  });
}

void Module::VisitModulePaths(const ModuleVisitor& visit) { VisitFrom("", visit); }

void Module::VisitFrom(const std::string& path, const ModuleVisitor& visit) {
  visit(path, *this);
  for (auto& [name, child] : children_) child->VisitFrom(JoinPath(path, name), visit);
}

void Module::VisitParameterPaths(const std::function<void(const std::string&, Parameter&)>& visit) {
  VisitModulePaths([&](const std::string& path, Module& module) {
    for (const OwnParameter& own : module.parameters_) {
      visit(JoinPath(path, own.name), *own.parameter);
    }
  });
}

std::vector<DistributedTensor> Module::Parameters() {
  std::vector<DistributedTensor> tensors;
  VisitParameters([&](const std::string&, Parameter& parameter) {
    DT_REQUIRE(parameter.tensor.defined(),
               "Module::Parameters() of a model of which a parameter has no memory; Materialize "
               "the model, or apply a plan to it, before");
    if (parameter.trained) tensors.push_back(parameter.tensor);
  });
  return tensors;
}

absl::Status Module::SetPaths() {
  absl::Status status;
  HashMap<std::string, const Parameter*> parameters;
  VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    for (const StoredPart& part : StoredPartsOf(path, parameter)) {
      if (parameters.try_emplace(part.name, &parameter).first->second == &parameter) continue;
      status.Update(InvalidArgument({"two parameters have the path ", part.name,
                                     ", by which first values and checkpoints know them; give a "
                                     "child without a name one, or a parameter another"}));
    }
  });
  DT_RETURN_IF_ERROR(status);
  VisitModules([](const std::string& path, Module& module) { module.path_ = path; });
  return absl::OkStatus();
}

absl::Status Module::Materialize(Context& context, const DeviceMesh& mesh, uint64_t seed) {
  absl::Status status;
  VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!parameter.tensor.defined()) status.Update(parameter.Check(path));
  });
  DT_RETURN_IF_ERROR(status);
  DT_RETURN_IF_ERROR(SetPaths());
  VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!status.ok() || parameter.tensor.defined()) return;
    const int ndim = static_cast<int>(parameter.shape.size());
    status = parameter.Materialize(context, Layout::Replicated(mesh, ndim), path, seed);
  });
  return status;
}

void Module::SetTraining(bool on) {
  VisitModules([on](const std::string&, Module& module) { module.training_ = on; });
}

std::vector<bool> Module::TrainingFlags() {
  std::vector<bool> flags;
  VisitModules([&](const std::string&, Module& module) { flags.push_back(module.training_); });
  return flags;
}

void Module::SetTrainingFlags(const std::vector<bool>& flags) {
  size_t i = 0;
  VisitModules([&](const std::string&, Module& module) { module.training_ = flags[i++]; });
}

RecomputedFunction Module::AsItTrains(RecomputedFunction run) {
  return [this, run = std::move(run),
          then = TrainingFlags()](absl::Span<const DistributedTensor> operands) -> TensorsOr {
    const std::vector<bool> now = TrainingFlags();
    if (now == then) return run(operands);
    SetTrainingFlags(then);
    const absl::Cleanup put_back = [&] { SetTrainingFlags(now); };  // also when it throws
    return run(operands);
  };
}

void Module::SkipFirstValues() {
  VisitParameters([](const std::string&, Parameter& parameter) {
    if (!parameter.is_adapter) parameter.init = ParameterInit::None();
  });
}

void Module::SetDType(DType dtype) {
  VisitParameters([&](const std::string&, Parameter& parameter) {
    DT_REQUIRE(!parameter.tensor.defined(),
               "Module::SetDType() of a model of which a parameter has memory; call it before the "
               "model is materialized, or a plan is applied to it");
    if (!IsFloat(parameter.dtype)) return;
    if (parameter.keeps_precision && SizeOf(dtype) < SizeOf(parameter.dtype)) return;
    parameter.dtype = dtype;
  });
}

void Module::AddChild(std::string name, Module* child) {
  DT_REQUIRE(child != nullptr, "Module::AddChild: the child is null");
  DT_REQUIRE(name.find('.') == std::string::npos,
             "Module::AddChild: a name has a '.', which separates the names of a path; leave it "
             "out");
  // Set the path already now, so that errors before SetPaths name the place as well.
  child->VisitModules([&](const std::string& path, Module& module) {
    DT_REQUIRE(&module != this,
               "Module::AddChild: the child is the module itself, or contains it; a model is a "
               "tree");
    module.path_ = JoinPath(JoinPath(path_, name), path);
  });
  children_.emplace_back(std::move(name), child);
}

void Module::AddParameter(std::string name, ParameterPtr parameter, std::vector<DimRole> roles) {
  DT_REQUIRE(parameter != nullptr, "Module::AddParameter: the parameter is null");
  DT_REQUIRE(name.find('.') == std::string::npos,
             "Module::AddParameter: a name has a '.', which separates the names of a path; leave "
             "it out");
  DT_REQUIRE(roles.empty() || roles.size() == parameter->shape.size(),
             "Module::AddParameter: there are more or fewer roles than dimensions; give a role "
             "for each dimension, or none");
  parameters_.push_back({std::move(name), std::move(parameter), std::move(roles)});
}

void Module::AddBuffer(std::string name, ParameterPtr buffer, std::vector<DimRole> roles) {
  DT_REQUIRE(buffer != nullptr, "Module::AddBuffer: the buffer is null");
  buffer->trained = false;
  AddParameter(std::move(name), std::move(buffer), std::move(roles));
}

void Module::RemoveParameter(absl::string_view name) {
  const auto is_it = [&](const OwnParameter& own) { return own.name == name; };
  parameters_.erase(std::remove_if(parameters_.begin(), parameters_.end(), is_it),
                    parameters_.end());
}

void Module::SetOperands(std::vector<std::string> names) {
  DT_REQUIRE(AreNames(names),
             "Module::SetOperands: give unique names, one at least, of letters, digits and '_', "
             "which do not begin with a digit");
  operands_ = std::move(names);
}

void Module::SetResults(std::vector<std::string> names) {
  DT_REQUIRE(AreNames(names),
             "Module::SetResults: give unique names, one at least, of letters, digits and '_', "
             "which do not begin with a digit");
  results_ = std::move(names);
}

}  // namespace dtensor
