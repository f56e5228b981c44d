#include "dtensor/checkpoint/training_state.h"

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/training_names.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/number_text.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

// Whether this rank names the parameter. If it has no elements of it and cannot take it apart into
// its parts, the ranks that hold it do.
bool IsNamed(const NamedParameter& named) {
  return named.parameter->parts.empty() || named.parameter->tensor.spec().on_mesh;
}

// Adds the tensor under the names of its parts, or under its own name. The names by other paths
// become aliases of these.
absl::Status AddTensor(const NamedParameter& named, const DistributedTensor& tensor,
                       CheckpointContent& content) {
  DT_ASSIGN_OR_RETURN(const StateDict parts,
                      PartsOf(named.paths[0], *named.parameter, tensor.Detach()));
  content.tensors.insert(parts.begin(), parts.end());
  for (size_t path = 1; path < named.paths.size(); ++path) {
    for (size_t i = 0; i < named.names[path].size(); ++i) {
      // What wraps a module without a name may have its parameter as well, at the same path.
      if (named.names[path][i] == named.names[0][i]) continue;
      content.aliases[named.names[path][i]] = named.names[0][i];
    }
  }
  return absl::OkStatus();
}

absl::Status AddOptimizerState(const NamedParameter& named, const Optimizer& optimizer,
                               CheckpointContent& content) {
  DT_ASSIGN_OR_RETURN(const OptimizerState state, optimizer.State(named.parameter->tensor));
  for (const auto& [name, tensor] : state) {
    if (name == kStepState) {
      for (const std::string& part : named.names[0]) {
        content.tensors[OptimizerName(name, part)] = tensor;
      }
      continue;
    }
    DT_ASSIGN_OR_RETURN(const StateDict parts, PartsOf(named.paths[0], *named.parameter, tensor));
    for (const auto& [part, of_part] : parts) {
      content.tensors[OptimizerName(name, part)] = of_part;
    }
  }
  return absl::OkStatus();
}

void AddEntries(Context& context, const TrainingState& state, CheckpointContent& content) {
  const auto add = [&](absl::string_view name, std::string text) {
    content.entries[std::string(name)] = std::move(text);
  };
  add(kPositionEntry, absl::StrCat(state.position));
  add(kSeedEntry, absl::StrCat(context.random().seed));
  add(kDrawnEntry, absl::StrCat(context.random().drawn));
  if (state.schedule) add(kScheduleEntry, state.schedule->ToString());
  add(kPlanEntry, state.plan);
  if (state.loss_scaler != nullptr) {
    const LossScaler::State& scaler = state.loss_scaler->state();
    add(kLossScaleEntry, ExactText(scaler.scale));
    add(kGoodStepsEntry, absl::StrCat(scaler.good_steps));
  }
  for (const auto& [name, text] : state.entries) add(absl::StrCat(kUserEntries, name), text);
}

// If ranks (such as those of other layers) have drawn different numbers of seeds, the entry gets
// the number of each rank. Collective.
absl::Status AddDrawnOfAll(Context& context, CheckpointContent& content) {
  DT_ASSIGN_OR_RETURN(const std::vector<uint64_t> drawn,
                      GatherValues(context, context.random().drawn));
  if (absl::c_count(drawn, drawn[0]) == static_cast<int64_t>(drawn.size())) return absl::OkStatus();
  content.entries[std::string(kDrawnEntry)] = absl::StrJoin(drawn, ",");
  return absl::OkStatus();
}

// This rank's content once all ranks have theirs; else an error on all ranks.
absl::StatusOr<CheckpointContent> AgreedContent(Context& context, const TrainingState& state) {
  absl::StatusOr<CheckpointContent> content = CheckpointContentOf(context, state);
  DT_RETURN_IF_ERROR(AgreeOn(context, content.status()));
  DT_RETURN_IF_ERROR(AddDrawnOfAll(context, *content));
  return content;
}

}  // namespace

absl::StatusOr<CheckpointContent> CheckpointContentOf(Context& context,
                                                      const TrainingState& state) {
  if (state.model == nullptr) return InvalidArgument({"SaveCheckpoint: there is no model"});
  if (state.schedule) {  // one that could not be read again would keep all of it from being loaded
    const absl::Status read = LrSchedule::Parse(state.schedule->ToString()).status();
    if (!read.ok()) return InvalidArgument({"SaveCheckpoint: ", read.message()});
  }
  CheckpointContent content;
  content.step = state.step;
  const OptimizedParameters optimized(state.optimizer);
  for (const absl::Status& fits :
       {CheckAreOfContext(context, *state.model), optimized.CheckAreOf(*state.model)}) {
    if (!fits.ok()) return InvalidArgument({"SaveCheckpoint: ", fits.message()});
  }
  for (const NamedParameter& named : NamedParameters(*state.model)) {
    if (!named.parameter->tensor.defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "SaveCheckpoint: parameter ", named.paths[0],
          " has no memory; Materialize the model, or ", "apply a plan to it, before it is saved"));
    }
    if (!IsNamed(named)) continue;
    DT_RETURN_IF_ERROR(AddTensor(named, named.parameter->tensor, content));
    if (!optimized.Contains(*named.parameter)) continue;
    DT_RETURN_IF_ERROR(AddOptimizerState(named, *state.optimizer, content));
  }
  AddEntries(context, state, content);
  return content;
}

absl::Status SaveCheckpoint(Context& context, CheckpointSaver& saver, const TrainingState& state) {
  DT_ASSIGN_OR_RETURN(const CheckpointContent content, AgreedContent(context, state));
  return saver.Save(content);
}

absl::Status SaveCheckpoint(Context& context, const std::string& folder, const TrainingState& state,
                            const SaveOptions& options) {
  DT_ASSIGN_OR_RETURN(const CheckpointContent content, AgreedContent(context, state));
  return SaveCheckpoint(context, folder, content, options);
}

}  // namespace dtensor
