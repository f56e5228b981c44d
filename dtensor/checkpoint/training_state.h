// A training run as a checkpoint: the model, its optimizer, and what else the next step depends on.
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
// On the same mesh, by the same plan, the run goes on with the bits that it would have had; on
// another one with the same values, which that mesh's sums round in their own way.
//
// Names in the checkpoint. A parameter or buffer has the name that Hugging Face's files have
// (state_dict.h), a tied one all of its names, and is written once. A state of the optimizer is
// called "optimizer/STATE/PARAMETER", as "optimizer/exp_avg/model.norm.weight".
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

// Of all ranks alike, but for the model and its optimizer: a rank may have a part of it, as a stage
// of a pipeline, on a mesh of some ranks (CheckpointContent). The Context's random state
// (Context::random) is part of it, too: its seed, which is that of all ranks, and how many each has
// drawn. Gradients are not: save between ClearGradients and Backward.
struct TrainingState {
  Module* model = nullptr;            // materialized
  Optimizer* optimizer = nullptr;     // of some of the model's parameters; null: none
  LossScaler* loss_scaler = nullptr;  // null: none
  int64_t step = 0;                   // steps made: the number of the next one
  int64_t position = 0;               // in the data, in a unit of the caller's
  std::optional<LrSchedule> schedule = {};
  std::string plan = {};                            // its text, for who wants to know
  std::map<std::string, std::string> entries = {};  // the caller's own
};

// What a checkpoint of it has, but for the number of seeds that other ranks have drawn, where these
// differ. No communication where parts of fused parameters lie within units. Errors:
// kInvalidArgument for a state without a model; of StateDictOf and Optimizer::State.
absl::StatusOr<CheckpointContent> CheckpointContentOf(Context& context, const TrainingState& state);

// Of CheckpointSaver::Save and CheckpointContentOf.
absl::Status SaveCheckpoint(Context& context, CheckpointSaver& saver, const TrainingState& state);
absl::Status SaveCheckpoint(Context& context, const std::string& folder, const TrainingState& state,
                            const SaveOptions& options = {});

// Fills the model, the optimizer, the scaler, the Context's random state, and the rest of `state`,
// from the checkpoint in `path`, or the latest one of a run's folder; returns its folder. On any
// mesh, by any plan, with parameters of any type of floats. Each rank reads what it holds.
//
// - A parameter is read by one of its names; the checkpoint may have any, or all of them.
// - An optimizer reads what it keeps. Where it has f32 masters, and the checkpoint none, the
//   parameter's saved values become the master; where the checkpoint has them, and the optimizer
//   none, a parameter that is as wide as the master is read from that.
// - Without an optimizer or a scaler in `state` what the checkpoint has of them stays there; a
//   schedule in `state` stays where the checkpoint has none.
// - Where ranks have drawn unlike many seeds, as stages of a pipeline that drop out do, each goes
//   on behind its own if the ranks of each mesh have as many; else all go on behind the most.
//
// Collective over the world. Errors, the same on all ranks: of OpenCheckpoint; kInvalidArgument,
// before anything is written, naming it, for a parameter of the model that the checkpoint lacks, a
// tensor of the checkpoint that the models of all ranks lack, another shape, a state that the
// checkpoint lacks (of another optimizer) or that the optimizer lacks, a scaler where it has none,
// and entries that cannot be read; of LoadTensors, where some of the values may be written.
// Failures.
absl::StatusOr<std::string> LoadCheckpoint(Context& context, const std::string& path,
                                           TrainingState& state,
                                           FileSystem& files = FileSystem::OfThisMachine());

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TRAINING_STATE_H_
