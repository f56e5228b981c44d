#include "dtensor/checkpoint/training_names.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

std::string OptimizerName(absl::string_view state, absl::string_view parameter) {
  return absl::StrCat(kOptimizerNames, state, "/", parameter);
}

std::vector<NamedParameter> NamedParameters(Module& model) {
  std::vector<NamedParameter> all;
  HashMap<const Parameter*, size_t> place;
  model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    const auto [at, is_new] = place.try_emplace(&parameter, all.size());
    if (is_new) all.emplace_back().parameter = &parameter;
    all[at->second].paths.push_back(path);
    std::vector<std::string>& names = all[at->second].names.emplace_back();
    for (StoredPart& part : StoredPartsOf(path, parameter)) names.push_back(std::move(part.name));
  });
  return all;
}

absl::Status CheckAreOfContext(const Context& context, Module& model) {
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    const DistributedTensor& tensor = parameter.tensor;
    if (!tensor.defined() || &tensor.context() == &context) return;
    status.Update(
        InvalidArgument({"the model's ", path, " belongs to another Context, that of ",
                         "another world; give the Context that its plan was applied in"}));
  });
  return status;
}

OptimizedParameters::OptimizedParameters(const Optimizer* optimizer) : optimizer_(optimizer) {
  if (optimizer == nullptr) return;
  for (const DistributedTensor& tensor : optimizer->parameters()) {
    tensors_.insert(tensor.impl().get());
  }
}

absl::Status OptimizedParameters::CheckAreOf(Module& model) const {
  if (optimizer_ == nullptr) return absl::OkStatus();
  HashSet<const void*> models;
  model.VisitParameters([&](const std::string&, Parameter& parameter) {
    models.insert(parameter.tensor.impl().get());
  });
  for (const DistributedTensor& tensor : optimizer_->parameters()) {
    if (models.contains(tensor.impl().get())) continue;
    return InvalidArgument({"the optimizer steps a parameter ", tensor.ToString(),
                            " that the model lacks; give the model that has all of its "
                            "parameters, as they were when it was made"});
  }
  return absl::OkStatus();
}

bool OptimizedParameters::Contains(const Parameter& parameter) const {
  return tensors_.contains(parameter.tensor.impl().get());
}

}  // namespace dtensor
