// One rank's part of training a byte-level LLaMA, or of going on with a model of a Hugging Face
// folder. The same program runs on ranks, and on a meta device to predict what it will communicate
// and hold.
#ifndef DTENSOR_EXAMPLES_TRAINING_TRAINER_H_
#define DTENSOR_EXAMPLES_TRAINING_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/checkpoint/save.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"

namespace dtensor::training {

// A model of Hugging Face's, with the weights that it has.
struct PretrainedModel {
  std::string config;  // the text of its config.json
  std::string folder;  // with its weights
};

struct TrainConfig {
  DeviceMesh mesh;
  // A preset's name, or the path of a file of lines (parallel_plans/presets.h); empty: that of the
  // mesh's axes. `cp_pattern` is the presets'. Each axis may be a group: the two of a double ring
  // are outer=2,inner=2;cp=outer*inner.
  std::string plan, cp_pattern = "zigzag";
  std::optional<ParallelPlan> lines;    // in place of what `plan` names
  int64_t bucket_bytes = kBucketBytes;  // BackwardOptions
  // ParallelPlanOptions. `recompute` are patterns of modules.
  bool keep_gathered = false, recompute_keeps_collectives = false;
  std::vector<std::string> recompute;
  TransformerConfig model;                    // with random weights
  std::optional<PretrainedModel> pretrained;  // in place of it
  DType dtype = DType::kF32;
  int64_t batch = 8, sequence = 256, steps = 300;
  double lr = 3e-3, clip = 1.0;
  int64_t warmup = 50;  // steps over which lr rises linearly
  AdamWOptions adamw;
  uint64_t seed = 1;
  uint64_t text_digest = 0;  // Corpus::digest() of what it is trained on
  bool allow_uneven = false;

  // lr of a step, from 0: warm-up, then constant.
  double LearningRate(int64_t step) const;

  // Errors: kInvalidArgument, naming the flag, for a number out of its range, an axis "dp" that
  // does not divide the batch (unless uneven shards are allowed), and too many ranks for threads.
  absl::Status Validate() const;
};

class Trainer {
 public:
  // Errors: kInvalidArgument: what the config, the model or the plan refuse, the same on every
  // rank.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Context& context,
                                                         const TrainConfig& config);

  // Begins a new run: reads the weights of config.pretrained, where that is, and draws dropout's
  // masks by config.seed from here on. To be called before the first step, unless Resume is, which
  // reads the run's own. Collective; on meta it looks at names and shapes. Errors: of
  // LoadHuggingFace.
  absl::Status Begin();

  struct StepResult {
    DistributedTensor loss, grad_norm;  // replicated scalars; reading them waits for the step
  };
  // One step on tokens [batch, sequence + 1]. Collective. Reads nothing back, so it runs on meta
  // too.
  absl::StatusOr<StepResult> Step(absl::Span<const int32_t> tokens);
  // Forward and backward without a step: gradients stay in the parameters, reduced.
  absl::StatusOr<DistributedTensor> LossAndGradients(absl::Span<const int32_t> tokens);
  // The mean loss (nats per token) of a batch, not recorded, without dropout. Collective.
  absl::StatusOr<DistributedTensor> Loss(absl::Span<const int32_t> tokens);

  Module& model() { return *model_; }
  int64_t step() const { return step_; }  // that comes next

  // Saves it by `saver`, with what the next step depends on. Collective.
  absl::Status Save(CheckpointSaver& saver);
  // Goes on from the latest checkpoint in `folder`: weights, optimizer states and the number of the
  // next step. Collective. Errors: of LoadCheckpoint; kInvalidArgument, naming the flag, where the
  // run was begun with another --seed or --batch, with which the next batches are other ones.
  absl::Status Resume(const std::string& folder);

 private:
  Trainer(Context& context, const TrainConfig& config) : context_(context), config_(config) {}
  TensorOr Forward(absl::Span<const int32_t> tokens);
  TrainingState State();

  Context& context_;
  const TrainConfig config_;
  std::unique_ptr<Module> model_;
  std::vector<DistributedTensor> parameters_;
  std::optional<AdamW> optimizer_;
  int64_t step_ = 0;
};

// The plan that `config` asks for. Errors: those of NamedPlan, with the flag in front, and of
// PresetOptionsFor.
absl::StatusOr<ParallelPlan> MakePlan(const TrainConfig& config);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_TRAINER_H_
