// A training run as a checkpoint: the model, its optimizer, and everything else that the next step
// depends on.
//
//   TrainingState state = {.model = &model, .optimizer = &adamw, .plan = plan.ToString()};
//   if (resume) DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", state).status());
//   CheckpointSaver saver(context, "run", {.keep_last = 2, .async = true});
//   while (state.step < steps) {
//     ... a step on the data at state.position, with schedule.At(state.step) ...
//     state.position += batch;
//     if (++state.step % 100 == 0) DT_RETURN_IF_ERROR(SaveCheckpoint(context, saver, state));
//   }
//   DT_RETURN_IF_ERROR(saver.Wait());
//
// With the same mesh and plan, the resumed run gives the same bits as if it had not been
// interrupted. With another mesh or plan it continues from the same values, and only the rounding
// of sums differs.
//
// Names in the checkpoint: a parameter or buffer has the name that it has in Hugging Face's files
// (state_dict.h). A tied one has all of its names, and is written once. A state of the optimizer is
// called "optimizer/STATE/PARAMETER", for example "optimizer/exp_avg/model.norm.weight".
#ifndef DTENSOR_CHECKPOINT_TRAINING_STATE_H_
#define DTENSOR_CHECKPOINT_TRAINING_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/loss_scaler.h"
#include "dtensor/nn/optim/lr_schedule.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// The same on all ranks, except for the model and its optimizer: a rank may have only a part of the
// model, such as a stage of a pipeline, on a mesh of some ranks (CheckpointContent). The Context's
// random state (Context::random) is saved, too: the seed, which is the same on all ranks, and how
// many seeds each rank has drawn. Gradients are not saved: save between ClearGradients and
// Backward.
struct TrainingState {
  Module* model = nullptr;            // materialized
  Optimizer* optimizer = nullptr;     // of some of the model's parameters; null: none
  LossScaler* loss_scaler = nullptr;  // null: none
  int64_t step = 0;                   // steps made so far: the number of the next step
  int64_t position = 0;               // in the data, in a unit of the caller's choice
  std::optional<LrSchedule> schedule = {};
  std::string plan = {};                            // its text, for information only
  std::map<std::string, std::string> entries = {};  // the caller's own
};

// The content of a checkpoint of `state`, except for the numbers of seeds that other ranks have
// drawn, if these differ. No communication if parts of fused parameters lie within units. Errors:
// kInvalidArgument for a state without a model, an optimizer that steps a parameter which the model
// lacks, and a schedule that could not be read again (LrSchedule::Parse); those of StateDictOf and
// Optimizer::State.
absl::StatusOr<CheckpointContent> CheckpointContentOf(Context& context, const TrainingState& state);

// Errors: those of CheckpointSaver::Save and CheckpointContentOf.
absl::Status SaveCheckpoint(Context& context, CheckpointSaver& saver, const TrainingState& state);
absl::Status SaveCheckpoint(Context& context, const std::string& folder, const TrainingState& state,
                            const SaveOptions& options = {});

// Loads the model, the optimizer, the scaler, the Context's random state, and the rest of `state`
// from the checkpoint in `path`; if this is the folder of a run, from its latest one. Returns the
// checkpoint's folder. The mesh and the plan may differ from those of the saved run, and parameters
// may have any float type. Each rank reads what it holds.
//
// - A parameter is read by one of its names; the checkpoint may have any or all of them.
// - An optimizer reads the states that it keeps. If it has f32 masters and the checkpoint does not,
//   the parameter's saved values become the master. If the checkpoint has masters and the optimizer
//   does not, a parameter that is as wide as the master is read from the master.
// - If `state` has no optimizer or no scaler, what the checkpoint has of them is ignored. If the
//   checkpoint has no schedule, that of `state` stays.
// - If ranks have drawn different numbers of seeds, as pipeline stages with dropout do, each rank
//   continues with its own number, provided that the ranks of each mesh have equal numbers;
//   otherwise all ranks continue with the largest number.
//
// Collective over the world. Errors, the same on all ranks: those of OpenCheckpoint;
// kInvalidArgument, before anything is written, naming it, for a parameter of the model that the
// checkpoint lacks, a tensor of the checkpoint that the models of all ranks lack, another shape, a
// state that the checkpoint lacks (it is of another optimizer) or that the optimizer lacks for a
// parameter that it steps, an optimizer that steps a parameter which the model lacks, a scaler if
// the checkpoint has none, and entries that cannot be read; those of LoadTensors, after which some
// of the values may have been written. Failures. States of parameters that the optimizer does not
// step (frozen ones, say) are not read, so the next save lacks them.
absl::StatusOr<std::string> LoadCheckpoint(Context& context, const std::string& path,
                                           TrainingState& state,
                                           FileSystem& files = FileSystem::OfThisMachine());

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TRAINING_STATE_H_
