// One rank's part of training a byte-level LLaMA, or of continuing to train a model of a Hugging
// Face folder. The same program runs on ranks, and on a meta device to predict what it will
// communicate and hold.
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
#include "dtensor/nn/lora.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/pipeline_schedule.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"

namespace dtensor::training {

// A Hugging Face model together with its weights.
struct PretrainedModel {
  std::string config;  // the text of its config.json
  std::string folder;  // with its weights
};

struct TrainConfig {
  DeviceMesh mesh;
  // The name of a preset, or the path of a plan file (parallel_plans/presets.h); empty: the preset
  // for the mesh's axes. `cp_pattern` is for presets. Each axis may be a group: for a double ring,
  // use outer=2,inner=2;cp=outer*inner.
  std::string plan, cp_pattern = "zigzag";
  std::optional<ParallelPlan> lines;    // used instead of `plan`
  int64_t bucket_bytes = kBucketBytes;  // BackwardOptions
  // ParallelPlanOptions. `recompute` has patterns of modules.
  bool keep_gathered = false, recompute_keeps_collectives = false;
  std::vector<std::string> recompute;
  TransformerConfig model;                    // with random weights
  std::optional<PretrainedModel> pretrained;  // used instead of `model`
  // Adapters that are trained in place of the weights (lora.h), and the folder of those to begin
  // with; empty: new ones. For pretrained models.
  std::optional<LoraOptions> lora;
  std::string adapter;
  DType dtype = DType::kF32;
  int64_t batch = 8, sequence = 256, steps = 300;
  // Parts of a batch, which go through a pipeline one after the other. Without stages, forward and
  // backward of one part come before those of the next, so activations are those of one part.
  int64_t micro_batches = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  double lr = 3e-3, clip = 1.0;
  // Of models with experts: BalancingLoss (mixture.h) times this is a part of the training loss.
  // Those with sigmoid scores move their biases by the rate after each step (BalanceByBias), unless
  // adapters are trained.
  double balance = 0.01, bias_rate = 0.001;
  int64_t warmup = 50;  // steps over which lr rises linearly
  AdamWOptions adamw;
  uint64_t seed = 1;
  uint64_t text_digest = 0;  // Corpus::digest() of what it is trained on
  bool allow_uneven = false;

  // The learning rate of a step, counted from 0: a warm-up, then constant.
  double LearningRate(int64_t step) const;

  // Errors: kInvalidArgument, naming the flag, for a number out of its range, a number of
  // micro-batches that does not divide the batch, axes dp and ep that do not divide a micro-batch
  // (unless uneven shards are allowed), and more ranks than there can be threads.
  absl::Status Validate() const;
};

class Trainer {
 public:
  // Errors: kInvalidArgument for what the config, the model or the plan refuse, the same on every
  // rank.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Context& context,
                                                         const TrainConfig& config);

  // Begins a new run: reads the weights of config.pretrained, if set, and from here on draws
  // dropout masks by config.seed. Call it before the first step, unless you call Resume, which
  // reads the run's own state. Collective; on meta it only checks names and shapes. Errors: those
  // of LoadHuggingFace.
  absl::Status Begin();

  struct StepResult {
    DistributedTensor loss, grad_norm;  // replicated scalars; reading them waits for the step
  };
  // Makes one step on tokens [batch, sequence + 1]. Collective. It reads no values back, so it runs
  // on meta too.
  absl::StatusOr<StepResult> Step(absl::Span<const int32_t> tokens);
  // Forward and backward without an optimizer step. The reduced gradients stay in the parameters.
  absl::StatusOr<DistributedTensor> LossAndGradients(absl::Span<const int32_t> tokens);
  // The mean loss (nats per token) of a batch, without recording, dropout and balancing.
  // Collective.
  absl::StatusOr<DistributedTensor> Loss(absl::Span<const int32_t> tokens);

  Module& model() { return *model_; }
  int64_t step() const { return step_; }  // the number of the next step

  // Saves the run with `saver`, including everything that the next step depends on. Collective.
  absl::Status Save(CheckpointSaver& saver);
  // Continues from the latest checkpoint in `folder`: weights, optimizer states and the number of
  // the next step. Collective. Errors: those of LoadCheckpoint; kInvalidArgument, naming the flag,
  // if the run was begun with another --seed or --batch, since its batches would then be different.
  absl::Status Resume(const std::string& folder);

 private:
  Trainer(Context& context, const TrainConfig& config) : context_(context), config_(config) {}
  absl::Status CheckSize(absl::Span<const int32_t> tokens) const;
  // What a micro-batch contributes to the mean loss of a batch. While the Context records, it
  // includes balancing.
  TensorOr ForwardPart(absl::Span<const int32_t> tokens, int64_t index);
  absl::Status AddSums(const DistributedTensor& router_sums);
  TrainingState State();

  Context& context_;
  const TrainConfig config_;
  std::string stage_axis_;  // of the plan's stages; empty: it has none
  bool moves_biases_ = false;
  DistributedTensor router_sums_;  // of this step so far, if biases are moved
  std::unique_ptr<Module> model_;
  std::vector<DistributedTensor> parameters_;
  std::optional<AdamW> optimizer_;
  int64_t step_ = 0;
};

// The plan that `config` asks for. Errors: those of NamedPlan, prefixed with the flag, and of
// PresetOptionsFor.
absl::StatusOr<ParallelPlan> MakePlan(const TrainConfig& config);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_TRAINER_H_
