#include "dtensor/examples/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/adapter.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/nn/balancing.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"

namespace dtensor::training {

double TrainConfig::LearningRate(int64_t step) const {
  return warmup <= 0
             ? lr
             : lr * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warmup));
}

namespace {

struct Range {
  absl::string_view flag;
  int64_t value, least, most;
};

// Within these ranges the largest model has fewer than 2^48 parameters, so its bytes can be
// counted.
absl::Status CheckRanges(const TrainConfig& config) {
  const TransformerConfig& model = config.model;
  for (const Range& range :
       {Range{"--dim", model.dim, 1, 1 << 16}, Range{"--layers", model.layers, 1, 10'000},
        Range{"--heads", model.heads, 1, 1 << 16}, Range{"--kv-heads", model.kv_heads, 1, 1 << 16},
        Range{"--hidden", model.hidden, 0, 1 << 18}, Range{"--experts", model.experts, 0, 4096},
        Range{"--batch", config.batch, 1, 1 << 30},
        Range{"--micro-batches", config.micro_batches, 1, config.batch},
        Range{"--seq", config.sequence, 1, 1 << 30},
        Range{"--steps", config.steps, 1, 1'000'000'000},
        Range{"--bucket-bytes", config.bucket_bytes, 0, int64_t{1} << 40},
        Range{"--warmup", config.warmup, 0, 1'000'000'000}}) {
    if (range.value >= range.least && range.value <= range.most) continue;
    return InvalidArgument({range.flag, ": ", absl::StrCat(range.value), " is out of range; take ",
                            absl::StrCat(range.least), " to ", absl::StrCat(range.most)});
  }
  if (!std::isfinite(config.balance) || config.balance < 0) {
    return InvalidArgument({"--balance: ", absl::StrCat(config.balance),
                            " is no factor of a loss; take a number from 0"});
  }
  if (!std::isfinite(config.bias_rate) || config.bias_rate < 0) {
    return InvalidArgument(
        {"--bias-rate: ", absl::StrCat(config.bias_rate), " is no rate; take a number from 0"});
  }
  if (std::isfinite(config.lr) && config.lr > 0) return absl::OkStatus();
  return InvalidArgument({"--lr: ", absl::StrCat(config.lr), " is no rate; take a number above 0"});
}

absl::Status CheckMesh(const TrainConfig& config) {
  constexpr int kMaxRanks = 1024;
  if (config.mesh.size() > kMaxRanks) {
    return InvalidArgument({"--mesh: ", absl::StrCat(config.mesh.size()),
                            " ranks are too many threads; take ", absl::StrCat(kMaxRanks),
                            " or fewer"});
  }
  const int64_t part = config.batch / config.micro_batches;
  if (part * config.micro_batches != config.batch) {
    return InvalidArgument({"--micro-batches: ", absl::StrCat(config.micro_batches),
                            " do not divide the ", absl::StrCat(config.batch),
                            " sequences of --batch; take a divisor of it"});
  }
  int64_t ranks = 1;
  std::string axes;  // those that shard the batch
  for (const char* const name : {"dp", "ep"}) {
    const absl::StatusOr<AxisList> found = config.mesh.Find(name);
    if (!found.ok()) continue;
    absl::StrAppend(&axes, axes.empty() ? "" : " and ", name);
    for (const int axis : *found) ranks *= config.mesh.axis_size(axis);
  }
  if (config.allow_uneven || part % ranks == 0) return absl::OkStatus();
  const bool is_cut = config.micro_batches > 1;
  return InvalidArgument({"--mesh: the ", absl::StrCat(ranks), " ranks of ", axes,
                          " do not divide the ", absl::StrCat(part), " sequences of ",
                          is_cut ? "each of --micro-batches" : "--batch",
                          "; take another mesh, a --batch that is a multiple of ",
                          absl::StrCat(ranks * config.micro_batches), ", or --allow-uneven"});
}

}  // namespace

absl::Status TrainConfig::Validate() const {
  DT_RETURN_IF_ERROR(CheckRanges(*this));
  if (!pretrained) DT_RETURN_IF_ERROR(model.Validate());
  return CheckMesh(*this);
}

absl::StatusOr<ParallelPlan> MakePlan(const TrainConfig& config) {
  if (config.lines) return *config.lines;
  const std::string name = config.plan.empty() ? DefaultPreset(config.mesh) : config.plan;
  PresetOptions options{.transformer = config.model};
  if (config.pretrained) {
    DT_ASSIGN_OR_RETURN(options, PresetOptionsFor(config.pretrained->config));
  }
  options.context_pattern = config.cp_pattern;
  options.allow_uneven = config.allow_uneven;
  const absl::StatusOr<ParallelPlan> plan = NamedPlan(name, config.mesh, options);
  if (plan.ok()) return plan;
  return absl::Status(
      plan.status().code(),
      absl::StrCat(config.plan.empty() ? "--mesh: " : "--plan: ", plan.status().message()));
}

namespace {

bool MovesBiases(const TrainConfig& config, const TransformerConfig& model) {
  return !config.lora && model.router_score == RouterScore::kSigmoid && config.bias_rate > 0;
}

absl::StatusOr<std::unique_ptr<Module>> MakeModel(const TrainConfig& config, bool& moves_biases) {
  std::optional<TransformerConfig> transformer = config.model;
  if (config.pretrained) {
    DT_ASSIGN_OR_RETURN(const PresetOptions options, PresetOptionsFor(config.pretrained->config));
    transformer = options.transformer;
  }
  std::unique_ptr<Module> model;
  if (transformer) {
    moves_biases = MovesBiases(config, *transformer);
    transformer->router_sums = transformer->experts > 0 && (config.balance > 0 || moves_biases);
    model = std::make_unique<Transformer>(*transformer);
  } else {
    DT_ASSIGN_OR_RETURN(model, ModelFromJson(config.pretrained->config));
  }
  if (config.pretrained) model->SkipFirstValues();
  model->SetDType(config.dtype);
  if (config.lora) DT_RETURN_IF_ERROR(AddLora(*model, *config.lora));
  return model;
}

// What of adapters a resumed run must have as before, and parameters do not say.
std::string ScaleText(const LoraOptions& lora) {
  return absl::StrCat(lora.alpha, lora.rank_stabilized ? " (rank-stabilized)" : "",
                      lora.dropout > 0 ? absl::StrCat(" with dropout ", lora.dropout) : "");
}

// While this exists, the model applies no dropout and draws no seeds, so that the next training
// step gets the same ones.
class Evaluation {
 public:
  explicit Evaluation(Module& model) : model_(model) { model_.SetTraining(false); }
  ~Evaluation() { model_.SetTraining(true); }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  Module& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Context& context,
                                                         const TrainConfig& config) {
  DT_RETURN_IF_ERROR(config.Validate());
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, MakePlan(config));
  std::unique_ptr<Trainer> trainer(new Trainer(context, config));
  DT_ASSIGN_OR_RETURN(trainer->model_, MakeModel(config, trainer->moves_biases_));
  const ParallelPlanOptions options = {
      .seed = config.seed,
      .allow_uneven = config.allow_uneven,
      .keep_gathered = config.keep_gathered,
      .recompute = config.recompute,
      .recompute_keeps_collectives = config.recompute_keeps_collectives};
  DT_RETURN_IF_ERROR(plan.Apply(*trainer->model_, context, config.mesh, options));
  DT_ASSIGN_OR_RETURN(trainer->stage_axis_, StageAxisOf(plan));
  trainer->parameters_ = trainer->model_->Parameters();
  DT_ASSIGN_OR_RETURN(trainer->optimizer_, AdamW::Create(trainer->parameters_, config.adamw));
  return trainer;
}

absl::Status Trainer::Begin() {
  context_.random() = {.seed = config_.seed};  // of dropout
  if (!config_.pretrained) return absl::OkStatus();
  DT_RETURN_IF_ERROR(LoadHuggingFace(*model_, config_.pretrained->folder).status());
  return config_.adapter.empty() ? absl::OkStatus()
                                 : LoadAdapter(*model_, config_.adapter).status();
}

absl::Status Trainer::CheckSize(absl::Span<const int32_t> tokens) const {
  const int64_t wanted = config_.batch * (config_.sequence + 1);
  if (static_cast<int64_t>(tokens.size()) == wanted) return absl::OkStatus();
  return InvalidArgument(
      {"a batch has ", absl::StrCat(wanted), " tokens, got ", absl::StrCat(tokens.size())});
}

TensorOr Trainer::ForwardPart(absl::Span<const int32_t> tokens, int64_t index) {
  const int64_t sequence = config_.sequence, rows = config_.batch / config_.micro_batches;
  std::vector<int32_t> ids, targets;
  for (int64_t b = index * rows; b < (index + 1) * rows; ++b) {
    const auto row = tokens.subspan(b * (sequence + 1), sequence + 1);
    ids.insert(ids.end(), row.begin(), row.end() - 1);
    targets.insert(targets.end(), row.begin() + 1, row.end());
  }
  // Every rank has all tokens and drops those that it does not need, without communication.
  const Layout whole = Layout::Replicated(config_.mesh, 2);
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results,
                      model_->Call({Distribute<int32_t>(context_, whole, {rows, sequence}, ids)}));
  const DistributedTensor& logits = results[0];
  // The logits of a pipeline are on the last stage's mesh.
  const Layout there = Layout::Replicated(logits.mesh(), 2);
  TensorOr loss =
      Mean(CrossEntropy(logits, Distribute<int32_t>(context_, there, {rows, sequence}, targets)),
           {0, 1});
  if (results.size() == 2 && context_.recording()) {
    if (config_.balance > 0) {
      loss = Add(loss, Scale(BalancingLoss(results[1], rows * sequence), config_.balance));
    }
    DT_RETURN_IF_ERROR(AddSums(results[1]));
  }
  if (config_.micro_batches == 1) return loss;
  return Scale(loss, 1.0 / static_cast<double>(config_.micro_batches));
}

absl::Status Trainer::AddSums(const DistributedTensor& router_sums) {
  if (!moves_biases_) return absl::OkStatus();
  const DistributedTensor more = router_sums.Detach();
  if (!router_sums_.defined()) {
    router_sums_ = more;
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(router_sums_, Add(router_sums_, more));
  return absl::OkStatus();
}

absl::StatusOr<DistributedTensor> Trainer::LossAndGradients(absl::Span<const int32_t> tokens) {
  DT_RETURN_IF_ERROR(CheckSize(tokens));
  router_sums_ = DistributedTensor();
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor loss,
      RunPipeline(context_, config_.mesh, stage_axis_, config_.micro_batches,
                  [&](int64_t i) { return ForwardPart(tokens, i); },
                  {.schedule = config_.schedule, .bucket_bytes = config_.bucket_bytes}));
  DT_RETURN_IF_ERROR(ReduceGradients(parameters_));
  return loss.Redistribute(Layout::Replicated(config_.mesh, 0));
}

absl::StatusOr<Trainer::StepResult> Trainer::Step(absl::Span<const int32_t> tokens) {
  StepResult result;
  DT_ASSIGN_OR_RETURN(result.loss, LossAndGradients(tokens));
  DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(parameters_, config_.clip));
  DT_RETURN_IF_ERROR(optimizer_->Step(config_.LearningRate(step_++), clip.scale));
  if (moves_biases_) {
    DT_RETURN_IF_ERROR(BalanceByBias(*model_, router_sums_, config_.bias_rate));
  }
  optimizer_->ClearGradients();
  // A plan may put all parameters on a part of the mesh.
  DT_ASSIGN_OR_RETURN(result.grad_norm,
                      clip.norm.Redistribute(Layout::Replicated(config_.mesh, 0)));
  return result;
}

TrainingState Trainer::State() {
  TrainingState state = {.model = model_.get(), .optimizer = &*optimizer_, .step = step_};
  state.position = step_ * config_.batch;  // in sequences
  state.entries = {{"seed", absl::StrCat(config_.seed)},
                   {"batch", absl::StrCat(config_.batch)},
                   {"seq", absl::StrCat(config_.sequence)},
                   {"text", absl::StrCat(config_.text_digest)},
                   {"lora-alpha", config_.lora ? ScaleText(*config_.lora) : "none"},
                   {"mesh", config_.mesh.ToString()}};
  if (const absl::StatusOr<ParallelPlan> plan = MakePlan(config_); plan.ok()) {
    state.plan = plan->ToString();
  }
  return state;
}

absl::Status Trainer::Save(CheckpointSaver& saver) {
  return SaveCheckpoint(context_, saver, State());
}

absl::Status Trainer::Resume(const std::string& folder) {
  TrainingState state = State();
  const auto mine = state.entries;
  DT_RETURN_IF_ERROR(LoadCheckpoint(context_, folder, state).status());
  for (const char* name : {"seed", "batch", "seq", "text", "lora-alpha"}) {
    const auto saved = state.entries.find(name);
    // Earlier versions did not save all of them.
    if (saved == state.entries.end() || saved->second == mine.at(name)) continue;
    const bool is_text = absl::string_view(name) == "text";  // a digest, which says nothing
    const std::string begun =
        is_text ? "another" : absl::StrCat(saved->second, ", not ", mine.at(name));
    return InvalidArgument({"--", name, ": the run in '", folder, "' was begun with ", begun,
                            "; what it trains, and on what, depends on it"});
  }
  step_ = state.step;
  return absl::OkStatus();
}

absl::StatusOr<DistributedTensor> Trainer::Loss(absl::Span<const int32_t> tokens) {
  const NoGrad no_grad(context_);
  const Evaluation evaluation(*model_);
  DT_RETURN_IF_ERROR(CheckSize(tokens));
  TensorOr loss = ForwardPart(tokens, 0);
  for (int64_t i = 1; i < config_.micro_batches; ++i) loss = Add(loss, ForwardPart(tokens, i));
  DT_RETURN_IF_ERROR(loss.status());
  return loss->Redistribute(Layout::Replicated(config_.mesh, 0));
}

}  // namespace dtensor::training
