// LoadCheckpoint: loads a model, its optimizer, and the rest of a training run.
#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/training_names.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/layout/digest.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

absl::Status OfLoad(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("LoadCheckpoint: ", status.message()));
}

constexpr absl::string_view kEndOfName = "\xff";  // never occurs in UTF-8

// A parameter, and the index of the path by which the checkpoint has it.
struct FoundParameter {
  NamedParameter named;
  size_t path = 0;
  const std::vector<std::string>& names() const { return named.names[path]; }
};

class TrainingLoader {
 public:
  TrainingLoader(Context& context, CheckpointReader& reader, TrainingState& state)
      : context_(context), reader_(reader), state_(state), optimized_(state.optimizer) {}

  absl::Status Load() {
    DT_RETURN_IF_ERROR(AgreeOn(context_, FindParameters()));
    DT_RETURN_IF_ERROR(GatherKnown());
    DT_RETURN_IF_ERROR(AgreeOn(context_, Prepare()));
    DT_RETURN_IF_ERROR(ChooseDrawn());
    const NoGrad no_grad(context_);
    absl::Status status;
    for (const FoundParameter& found : found_) {
      if (status.ok()) status = BeforeWrite(found.named.parameter->tensor);
    }
    DT_RETURN_IF_ERROR(AgreeOn(context_, status));
    // Ranks may have different parameters, so they agree on errors only at the end. A rank that
    // cannot read goes on nevertheless, because ranks that share a parameter with it move its parts
    // together.
    for (const FoundParameter& found : found_) {
      status.Update(LoadParameter(found));
      if (optimized_.Contains(*found.named.parameter)) status.Update(LoadState(found));
    }
    status.Update(read_);
    if (status.ok()) status = context_.device().Synchronize();
    DT_RETURN_IF_ERROR(AgreeOn(context_, status));
    return SetEntries();
  }

 private:
  const CheckpointIndex& index() const { return reader_.index(); }

  // --- What can be refused before anything is written.
  absl::Status FindParameters() {
    if (state_.model == nullptr) return InvalidArgument({"there is no model"});
    DT_RETURN_IF_ERROR(CheckAreOfContext(context_, *state_.model));
    DT_RETURN_IF_ERROR(optimized_.CheckAreOf(*state_.model));
    for (NamedParameter& named : NamedParameters(*state_.model)) {
      for (const auto& names : named.names) known_.insert(names.begin(), names.end());
      DT_RETURN_IF_ERROR(FindParameter(std::move(named)));
    }
    return absl::OkStatus();
  }

  // Gathers the names that other ranks have, too. Collective.
  absl::Status GatherKnown() {
    Digest digest;
    for (const std::string& name : known_) digest.Add(name);
    DT_ASSIGN_OR_RETURN(const auto digests, GatherValues(context_, digest.value()));
    if (std::equal(digests.begin() + 1, digests.end(), digests.begin())) return absl::OkStatus();
    std::string mine;  // all names, each followed by a byte that no name contains
    for (const std::string& name : known_) absl::StrAppend(&mine, name, kEndOfName);
    DT_ASSIGN_OR_RETURN(const auto all, GatherBytes(context_, mine, "LoadCheckpoint"));
    for (const std::string& names : all) {
      for (const absl::string_view name : absl::StrSplit(names, kEndOfName, absl::SkipEmpty())) {
        known_.insert(std::string(name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Prepare() {
    for (const auto& [name, tensor] : index().tensors) {
      if (IsOptimizerName(name) || known_.contains(name)) continue;
      return InvalidArgument({"the model has no ", name, ", which checkpoint '", reader_.path(),
                              "' has; load it into the model that was saved, or some of its ",
                              "tensors by LoadTensors"});
    }
    for (const FoundParameter& found : found_) {
      const Parameter& parameter = *found.named.parameter;
      std::vector<std::string> sources;
      for (const std::string& name : found.names()) {
        sources.push_back(SourceOf(name, parameter.tensor.dtype()));
      }
      DT_RETURN_IF_ERROR(CheckParts(found, sources, parameter.tensor.dtype()));
      if (optimized_.Contains(parameter)) DT_RETURN_IF_ERROR(CheckState(found));
    }
    return ReadEntries();
  }

  // Checks that what the checkpoint has under these names fits the parameter's parts.
  absl::Status CheckParts(const FoundParameter& found, const std::vector<std::string>& sources,
                          DType dtype) const {
    const auto parts = StoredPartsOf(found.named.paths[found.path], *found.named.parameter);
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string into = absl::StrCat(DimsToString(parts[i].shape), " ", ToString(dtype));
      const absl::Status status =
          internal::CheckLoad(reader_, sources[i], parts[i].shape, dtype, into);
      if (!status.ok()) return OfSafetensor(sources[i], status);
    }
    return absl::OkStatus();
  }

  // If it is the name of an optimizer state, notes which state of which parameter.
  bool IsOptimizerName(absl::string_view name) {
    if (!absl::ConsumePrefix(&name, kOptimizerNames)) return false;
    const size_t slash = name.find('/');
    if (slash == name.npos) return false;
    saved_states_[std::string(name.substr(slash + 1))].emplace_back(name.substr(0, slash));
    return true;
  }

  absl::Status FindParameter(NamedParameter named) {
    if (!named.parameter->tensor.defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter ", named.paths[0], " has no memory; Materialize the model, or apply a plan ",
          "to it, before it is loaded"));
    }
    for (size_t path = 0; path < named.paths.size(); ++path) {
      const auto& names = named.names[path];
      const bool all = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return index().Find(name) != nullptr;
      });
      if (!all) continue;
      found_.push_back({std::move(named), path});
      return absl::OkStatus();
    }
    const auto& names = named.names[0];
    const auto missing = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return index().Find(name) == nullptr;
    });
    return InvalidArgument(
        {"checkpoint '", reader_.path(), "' has no ", *missing, ", which the model has"});
  }

  // The name under which the checkpoint has a state, or the values that take its place.
  std::string StateSource(absl::string_view state, const std::string& parameter) const {
    const std::string name = OptimizerName(state, TensorName(parameter));
    const bool is_missing_master = state == kMasterState && index().Find(name) == nullptr;
    return is_missing_master ? parameter : name;
  }
  // If tensors are tied, the name under which the tensor was written.
  std::string TensorName(const std::string& name) const {
    const auto alias = index().aliases.find(name);
    return alias == index().aliases.end() ? name : alias->second;
  }
  // A parameter that is at least as wide as its saved master is read from the master.
  std::string SourceOf(const std::string& parameter, DType dtype) const {
    const std::string master = OptimizerName(kMasterState, TensorName(parameter));
    const CheckpointTensor* const saved = index().Find(master);
    return saved != nullptr && SizeOf(dtype) >= SizeOf(saved->dtype) ? master : parameter;
  }

  absl::Status CheckState(const FoundParameter& found) const {
    DT_ASSIGN_OR_RETURN(const OptimizerState state,
                        state_.optimizer->State(found.named.parameter->tensor));
    for (const std::string& part : found.names()) {
      for (const auto& [name, tensor] : state) {
        if (index().Find(StateSource(name, part)) != nullptr) continue;
        return InvalidArgument({"checkpoint '", reader_.path(), "' has no ",
                                OptimizerName(name, TensorName(part)), ", which the optimizer ",
                                "keeps; it was saved with another optimizer, or none: load the ",
                                "model alone"});
      }
      const auto saved = saved_states_.find(TensorName(part));
      if (saved == saved_states_.end()) continue;
      for (const std::string& name : saved->second) {
        if (name == kMasterState || state.contains(name)) continue;
        return InvalidArgument({"the optimizer keeps no ", name, ", which checkpoint '",
                                reader_.path(), "' has of ", part,
                                "; it was saved with another optimizer"});
      }
    }
    for (const auto& [name, tensor] : state) {
      if (name == kStepState) continue;
      std::vector<std::string> sources;
      for (const std::string& part : found.names()) sources.push_back(StateSource(name, part));
      DT_RETURN_IF_ERROR(CheckParts(found, sources, tensor.dtype()));
    }
    return absl::OkStatus();
  }

  // --- Tensors.
  // A tensor in the layout of `like`, with the values of the parts under these names.
  TensorOr Read(const FoundParameter& found, const DistributedTensor& like,
                const std::vector<std::string>& sources) {
    if (!like.spec().on_mesh) {  // others read it
      return Full(context_, like.layout(), like.shape(), like.dtype(), 0);
    }
    const Parameter& parameter = *found.named.parameter;
    DT_ASSIGN_OR_RETURN(const StateDict parts, PartsLike(found, like));
    for (size_t i = 0; i < sources.size(); ++i) ReadLocal(sources[i], parts.at(found.names()[i]));
    DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                        JoinParts(found.named.paths[found.path], parameter, parts));
    return whole.Redistribute(like.layout());
  }

  // Tensors for the parts of a tensor like this one. To learn the layouts of parts that are no
  // slices moves nothing.
  absl::StatusOr<StateDict> PartsLike(const FoundParameter& found, const DistributedTensor& like) {
    const Parameter& parameter = *found.named.parameter;
    const std::string& path = found.named.paths[found.path];
    StateDict parts;
    if (HasSlices(parameter)) {
      DT_ASSIGN_OR_RETURN(const Layout layout, LayoutOfSlices(like.layout()));
      for (const StoredPart& part : StoredPartsOf(path, parameter)) {
        DT_ASSIGN_OR_RETURN(parts[part.name], Full(context_, layout, part.shape, like.dtype(), 0));
      }
      return parts;
    }
    DT_ASSIGN_OR_RETURN(const StateDict likes, PartsOf(path, parameter, like.Detach()));
    for (const auto& [name, part] : likes) {
      DT_ASSIGN_OR_RETURN(parts[name],
                          Full(context_, part.layout(), part.shape(), part.dtype(), 0));
    }
    return parts;
  }

  // Reads this rank's elements, unless an earlier read has failed.
  void ReadLocal(const std::string& source, const DistributedTensor& into) {
    if (read_.ok()) read_ = internal::LoadLocal(reader_, source, into);
  }

  absl::Status LoadParameter(const FoundParameter& found) {
    const DistributedTensor& to = found.named.parameter->tensor;
    std::vector<std::string> sources;
    for (const std::string& name : found.names()) sources.push_back(SourceOf(name, to.dtype()));
    if (found.named.parameter->parts.empty()) {
      ReadLocal(sources[0], to);  // into its own memory
      return absl::OkStatus();
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor from, Read(found, to, sources));
    return kernels::Copy(context_.device(), from.local(), to.local());
  }

  absl::Status LoadState(const FoundParameter& found) {
    const DistributedTensor& parameter = found.named.parameter->tensor;
    DT_ASSIGN_OR_RETURN(OptimizerState state, state_.optimizer->State(parameter));
    for (auto& [name, tensor] : state) {
      if (name == kStepState) {
        DT_ASSIGN_OR_RETURN(tensor, ReadStep(found, tensor));
        continue;
      }
      std::vector<std::string> sources;
      for (const std::string& part : found.names()) sources.push_back(StateSource(name, part));
      DT_ASSIGN_OR_RETURN(tensor, Read(found, tensor, sources));
    }
    return state_.optimizer->SetState(parameter, state);
  }

  // All parts of one parameter must have made the same number of steps.
  TensorOr ReadStep(const FoundParameter& found, const DistributedTensor& like) {
    DistributedTensor step;
    std::vector<int64_t> first;
    for (const std::string& part : found.names()) {
      DT_ASSIGN_OR_RETURN(step, Full(context_, like.layout(), {}, DType::kI64, 0));
      ReadLocal(StateSource(kStepState, part), step);
      if (!step.spec().on_mesh || !read_.ok()) continue;
      DT_ASSIGN_OR_RETURN(const std::vector<int64_t> made, ToGlobal<int64_t>(step));
      if (first.empty()) first = made;
      if (made == first) continue;
      read_ = InvalidArgument({"checkpoint '", reader_.path(), "' has ", absl::StrCat(made[0]),
                               " steps of ", part, " and ", absl::StrCat(first[0]), " of ",
                               found.names()[0], ", which are one parameter of this model"});
    }
    return step;
  }

  // --- Texts.
  template <typename T>
  absl::Status ReadNumber(absl::string_view name, T& out) const {
    const auto at = index().entries.find(std::string(name));
    if (at == index().entries.end()) {
      return InvalidArgument(
          {"checkpoint '", reader_.path(), "' has no entry ", name, "; it is of no training run"});
    }
    bool read;
    if constexpr (std::is_floating_point_v<T>) {
      read = absl::SimpleAtod(at->second, &out);
    } else {
      read = absl::SimpleAtoi(at->second, &out);
    }
    if (read) return absl::OkStatus();
    return InvalidArgument({"checkpoint '", reader_.path(), "' has '", at->second, "' as ", name});
  }

  // Reads one number, or one for each rank that saved.
  absl::Status ReadDrawn() {
    const auto at = index().entries.find(std::string(kDrawnEntry));
    if (at == index().entries.end() || !absl::StrContains(at->second, ',')) {
      return ReadNumber(kDrawnEntry, random_.drawn);
    }
    for (const absl::string_view text : absl::StrSplit(at->second, ',')) {
      if (absl::SimpleAtoi(text, &drawn_.emplace_back())) continue;
      return InvalidArgument(
          {"checkpoint '", reader_.path(), "' has '", at->second, "' as ", kDrawnEntry});
    }
    return absl::OkStatus();
  }

  // All ranks of one mesh continue with the same number. Collective if the checkpoint has several.
  absl::Status ChooseDrawn() {
    if (drawn_.empty()) return absl::OkStatus();
    bool fits = static_cast<int>(drawn_.size()) == context_.world_size();
    for (size_t i = 0; fits && i < found_.size(); ++i) {
      const DeviceMesh& mesh = found_[i].named.parameter->tensor.mesh();
      for (int position = 0; mesh.Contains(context_.rank()) && position < mesh.size(); ++position) {
        fits = fits && drawn_[mesh.RankOf(position)] == drawn_[context_.rank()];
      }
    }
    DT_ASSIGN_OR_RETURN(const std::vector<char> all, GatherValues<char>(context_, fits ? 1 : 0));
    const bool all_fit = std::find(all.begin(), all.end(), 0) == all.end();
    random_.drawn =
        all_fit ? drawn_[context_.rank()] : *std::max_element(drawn_.begin(), drawn_.end());
    return absl::OkStatus();
  }

  absl::Status ReadEntries() {
    step_ = index().step;
    DT_RETURN_IF_ERROR(ReadNumber(kPositionEntry, position_));
    DT_RETURN_IF_ERROR(ReadNumber(kSeedEntry, random_.seed));
    DT_RETURN_IF_ERROR(ReadDrawn());
    if (state_.loss_scaler != nullptr) {
      if (!index().entries.contains(std::string(kLossScaleEntry))) {
        return InvalidArgument({"checkpoint '", reader_.path(),
                                "' was saved without a LossScaler; ",
                                "load it without one, and begin with a new one"});
      }
      DT_RETURN_IF_ERROR(ReadNumber(kLossScaleEntry, scaler_.scale));
      DT_RETURN_IF_ERROR(ReadNumber(kGoodStepsEntry, scaler_.good_steps));
      LossScaler tried = *state_.loss_scaler;
      DT_RETURN_IF_ERROR(tried.set_state(scaler_));
    }
    for (const auto& [name, text] : index().entries) {
      if (name == kPlanEntry) plan_ = text;
      if (name == kScheduleEntry) {
        DT_ASSIGN_OR_RETURN(schedule_, LrSchedule::Parse(text));
      }
      absl::string_view own = name;
      if (absl::ConsumePrefix(&own, kUserEntries)) entries_[std::string(own)] = text;
    }
    return absl::OkStatus();
  }

  absl::Status SetEntries() {
    if (state_.loss_scaler != nullptr) DT_RETURN_IF_ERROR(state_.loss_scaler->set_state(scaler_));
    context_.random() = random_;
    state_.step = step_;
    state_.position = position_;
    if (schedule_) state_.schedule = schedule_;
    state_.plan = std::move(plan_);
    state_.entries = std::move(entries_);
    return absl::OkStatus();
  }

  Context& context_;
  CheckpointReader& reader_;
  TrainingState& state_;
  const OptimizedParameters optimized_;
  std::set<std::string, std::less<>> known_;  // names of the models of all ranks
  std::vector<FoundParameter> found_;
  absl::Status read_;                                             // the first error of reading
  std::map<std::string, std::vector<std::string>> saved_states_;  // by parameter
  int64_t step_ = 0, position_ = 0;
  RandomState random_;
  std::vector<uint64_t> drawn_;  // by each rank that saved; empty: all had drawn equally many
  LossScaler::State scaler_;
  std::optional<LrSchedule> schedule_;
  std::string plan_;
  std::map<std::string, std::string> entries_;
};

}  // namespace

absl::StatusOr<std::string> LoadCheckpoint(Context& context, const std::string& path,
                                           TrainingState& state, FileSystem& files) {
  absl::StatusOr<CheckpointReader> reader = OpenCheckpoint(context, path, files);
  DT_RETURN_IF_ERROR(OfLoad(reader.status()));
  DT_RETURN_IF_ERROR(OfLoad(TrainingLoader(context, *reader, state).Load()));
  return reader->path();
}

}  // namespace dtensor
