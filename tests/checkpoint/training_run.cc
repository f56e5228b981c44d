#include "dtensor/tests/checkpoint/training_run.h"

#include <algorithm>
#include <utility>

#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"

namespace dtensor {
namespace {

constexpr int64_t kBatch = 4, kSequence = 8;

TransformerConfig ConfigOf(const TrainingPlace& place) {
  TransformerConfig config = SmallTransformer();
  config.fused_projections = place.fused;
  config.tie_embeddings = place.tied;
  config.experts = place.experts;
  config.experts_per_token = std::min<int64_t>(place.experts, 2);
  return config;
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const TrainingPlace& place, const std::vector<DistributedTensor>& parameters) {
  if (place.sgd) {
    DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create(parameters, {.momentum = 0.9}));
    return std::make_unique<Sgd>(std::move(sgd));
  }
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(parameters, {.master_weights = place.masters}));
  return std::make_unique<AdamW>(std::move(adamw));
}

}  // namespace

std::vector<TrainingPlace> TrainingPlaces() {
  std::vector<TrainingPlace> places = {{"tp=1", "none"},
                                       {"dp=2", "dp"},
                                       {"tp=2", "tp"},
                                       {"tp=2", "tp+sp"},
                                       {"dp=2", "zero1"},
                                       {"dp=2", "zero2"},
                                       {"dp=4", "fsdp"},
                                       {"a=2,b=2;dp=a*b", "hsdp"},
                                       {"dp=2,tp=2", "fsdp+tp+sp"},
                                       {"cp=2", "cp"},
                                       {"cp=2,tp=2", "cp+tp+sp"},
                                       {"tp=4", "tp"}};
  for (size_t i = 0; i < places.size(); ++i) places[i].fused = i % 2 == 1;
  return places;
}

std::vector<TrainingPlace> MixturePlaces(int64_t experts) {
  std::vector<TrainingPlace> places = {{"tp=1", "none"},         {"ep=2", "ep"},
                                       {"tp=2", "tp+sp"},        {"ep=2,tp=2", "ep+tp"},
                                       {"dp=2,ep=2", "fsdp+ep"}, {"dp=4", "fsdp"}};
  for (TrainingPlace& place : places) place.experts = experts;
  return places;
}

int RanksOf(const TrainingPlace& place) { return DeviceMesh::Parse(place.mesh)->size(); }

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::Create(Context& context,
                                                                 const TrainingPlace& place) {
  DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse(place.mesh));
  std::unique_ptr<TrainingRun> run(new TrainingRun(context, ConfigOf(place), std::move(mesh)));
  run->model_.SetDType(place.dtype);
  PresetOptions preset;
  preset.transformer = run->model_.config();
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, NamedPlan(place.plan, run->mesh_, preset));
  DT_RETURN_IF_ERROR(plan.Apply(run->model_, context, run->mesh_, {.seed = place.seed}));
  run->parameters_ = run->model_.Parameters();
  DT_ASSIGN_OR_RETURN(run->optimizer_, MakeOptimizer(place, run->parameters_));
  run->state_.model = &run->model_;
  run->state_.optimizer = run->optimizer_.get();
  run->state_.schedule = LrSchedule::Cosine(0.02, 2, 40);
  run->state_.plan = plan.ToString();
  context.random() = {.seed = place.seed, .drawn = 0};
  return run;
}

absl::StatusOr<double> TrainingRun::Step() {
  const auto salt = static_cast<int64_t>(context_.NextSeed() % 97);
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(static_cast<int32_t>((i * 5 + state_.position * 3 + salt) % kSmallVocab));
    targets.push_back(static_cast<int32_t>((i * 7 + state_.position + salt) % kSmallVocab));
  }
  const Layout whole = Layout::Replicated(mesh_, 2);
  const TensorOr logits = model_(Distribute<int32_t>(context_, whole, {kBatch, kSequence}, ids));
  const TensorOr loss =
      Mean(CrossEntropy(logits, Distribute<int32_t>(context_, whole, {kBatch, kSequence}, targets)),
           {0, 1});
  DT_RETURN_IF_ERROR(loss.status());
  DT_RETURN_IF_ERROR(Backward(*loss));
  DT_RETURN_IF_ERROR(ReduceGradients(parameters_));
  DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(parameters_, 1.0));
  DT_RETURN_IF_ERROR(optimizer_->Step(state_.schedule->At(state_.step), clip.scale));
  optimizer_->ClearGradients();
  ++state_.step;
  state_.position += kBatch;
  return Item(*loss);
}

absl::StatusOr<RunValues> TrainingRun::Values() {
  DT_ASSIGN_OR_RETURN(const CheckpointContent content, CheckpointContentOf(context_, state_));
  const NoGrad no_grad(context_);
  RunValues values;
  for (const auto& [name, tensor] : content.tensors) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
    DT_ASSIGN_OR_RETURN(values[name], ToGlobal<double>(wide));
  }
  return values;
}

}  // namespace dtensor
