#include "dtensor/parallel_plans/explain/training_step.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/optim/muon.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/explain/fold_paths.h"
#include "dtensor/parallel_plans/explain/step_meter.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/saved_memory.h"

namespace dtensor {
namespace {

using internal::StepMeter;

absl::Status CheckStep(const TrainingStep& step) {
  for (const auto& [name, size] : {std::pair("batch", step.batch),
                                   {"sequence", step.sequence},
                                   {"micro_batches", step.micro_batches}}) {
    if (size >= 1) continue;
    return InvalidArgument({name, ": ", absl::StrCat(size), " is no size; take 1 or more"});
  }
  if (step.batch % step.micro_batches != 0) {
    return InvalidArgument({"micro_batches: ", absl::StrCat(step.micro_batches),
                            " do not divide the ", absl::StrCat(step.batch),
                            " sequences of the batch; take a divisor of it"});
  }
  if (IsFloat(step.dtype)) return absl::OkStatus();
  return InvalidArgument(
      {"a model of ", ToString(step.dtype), " cannot be trained; take f32, f64, bf16 or f16"});
}

template <typename T>
absl::StatusOr<std::unique_ptr<Optimizer>> OnHeap(absl::StatusOr<T> made) {
  DT_RETURN_IF_ERROR(made.status());
  return std::make_unique<T>(*std::move(made));
}

bool IsInList(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '.');
  return std::any_of(parts.begin(), parts.end(), internal::IsNumber);
}

absl::StatusOr<Muon> MakeMuon(Module& model, bool masters) {
  MuonGroup matrices = {{}, {.master_weights = masters}};
  AdamWGroup others = {{}, {.master_weights = masters}};
  model.VisitParameters([&](const std::string& path, const Parameter& parameter) {
    if (!parameter.trained) return;
    const int dims = parameter.tensor.ndim();
    const bool is_matrix = (dims == 2 || dims == 3) && IsInList(path);
    (is_matrix ? matrices.parameters : others.parameters).push_back(parameter.tensor);
  });
  return Muon::Create({std::move(matrices)}, {std::move(others)});
}

// Null if the step has no optimizer.
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const TrainingStep& step, Module& model) {
  const bool masters = SizeOf(step.dtype) == 2;
  switch (step.optimizer) {
    case StepOptimizer::kAdamW:
      return OnHeap(AdamW::Create(model.Parameters(), {.master_weights = masters}));
    case StepOptimizer::kMuon:
      return OnHeap(MakeMuon(model, masters));
    case StepOptimizer::kSgd:
      return OnHeap(Sgd::Create(model.Parameters(), {.momentum = 0.9, .master_weights = masters}));
    case StepOptimizer::kNone:
      break;
  }
  return nullptr;
}

int64_t LiveBytes(Context& context) { return context.device().memory().live_bytes; }

// How long a simulated rank takes for each kind of work; 0 on a rank that really runs.
class StepSeconds {
 public:
  explicit StepSeconds(Context& context) : clock_(context.simulated_clock()), before_(Now()) {}

  void Begin(PipelineWork work) {
    Account();
    work_ = work;
  }
  StageSeconds OfOne(int64_t micro_batches) {
    Account();
    const auto n = static_cast<double>(micro_batches);
    return {all_.forward / n, all_.inputs / n, all_.weights / n};
  }

 private:
  double Now() const { return clock_ == nullptr ? 0 : clock_->time().total(); }
  void Account() {
    const double now = Now(), spent = now - std::exchange(before_, now);
    const bool is_forward = work_ == PipelineWork::kForward;
    const bool is_put_off = work_ == PipelineWork::kWeightGradients;
    (is_forward ? all_.forward : is_put_off ? all_.weights : all_.inputs) += spent;
  }

  const SimulatedClock* const clock_;
  double before_;
  PipelineWork work_ = PipelineWork::kForward;
  StageSeconds all_;
};

// Makes the steps of one rank.
class Steps {
 public:
  Steps(Context& context, const TrainingStep& step)
      : context_(context), step_(step), empty_(LiveBytes(context)) {}

  absl::Status MakeModel() {
    DT_ASSIGN_OR_RETURN(stage_axis_, StageAxisOf(step_.plan));
    DT_ASSIGN_OR_RETURN(model_, step_.model());
    model_->SetDType(step_.dtype);
    DT_RETURN_IF_ERROR(
        step_.plan.Apply(*model_, context_, step_.mesh,
                         {.allow_uneven = step_.allow_uneven, .recompute = step_.recompute}));
    memory_.parameters = LiveBytes(context_) - empty_;
    parameters_ = model_->Parameters();
    const int64_t before = LiveBytes(context_);
    DT_ASSIGN_OR_RETURN(optimizer_, MakeOptimizer(step_, *model_));
    memory_.optimizer = LiveBytes(context_) - before;
    return MakeInputs();
  }

  // Makes one step; counts it if there is a meter.
  absl::Status Step(StepMeter* meter) {
    const auto begin = [&](StepPhase phase) {
      if (meter != nullptr) meter->Begin(phase);
    };
    const int64_t before = LiveBytes(context_);
    // Backward of an earlier micro-batch adds gradients to what is alive.
    int64_t ahead = AheadOfBackward();
    const auto loss_of = [&](int64_t i) -> TensorOr {
      TensorOr loss = LossOf(i);
      if (ahead-- > 0) memory_.activations = LiveBytes(context_) - before;
      return loss;
    };
    StepSeconds seconds(context_);
    const auto on_step = [&](const PipelineStep& next) {
      begin(next.work == PipelineWork::kForward ? StepPhase::kForward : StepPhase::kBackward);
      seconds.Begin(next.work);
    };
    DT_ASSIGN_OR_RETURN(DistributedTensor loss,
                        RunPipeline(context_, step_.mesh, stage_axis_, step_.micro_batches, loss_of,
                                    {.schedule = step_.schedule, .on_step = on_step}));
    micro_batch_ = seconds.OfOne(step_.micro_batches);
    begin(StepPhase::kUpdate);
    DT_RETURN_IF_ERROR(loss.Redistribute(Layout::Replicated(step_.mesh, 0)).status());
    loss = DistributedTensor();
    DT_RETURN_IF_ERROR(ReduceGradients(parameters_));
    memory_.gradients = LiveBytes(context_) - before;
    return Update();
  }

  // Finds which module saved what, in another forward.
  absl::Status Saved(StepMeter& meter) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, LossOf(0));
    FreeSaved(loss, [&](const void* scope, int64_t bytes) { meter.AddSaved(scope, bytes); });
    return absl::OkStatus();
  }

  Module& model() { return *model_; }
  const std::vector<DistributedTensor>& parameters() const { return parameters_; }
  // Call this after a counted step.
  MemoryFigures memory() const {
    MemoryFigures memory = memory_;
    memory.peak = context_.device().memory().peak_bytes - empty_;
    return memory;
  }
  const StageSeconds& micro_batch() const { return micro_batch_; }
  // Counts what stays allocated between two steps.
  void CountGathered() {
    memory_.gathered =
        LiveBytes(context_) - empty_ - memory_.parameters - memory_.optimizer - memory_.inputs;
  }

 private:
  // What micro-batch i contributes to the mean loss of the batch.
  TensorOr LossOf(int64_t i) {
    TensorOr loss = step_.loss(*model_, inputs_[i].ids, inputs_[i].targets);
    if (step_.micro_batches == 1) return loss;
    return Scale(loss, 1.0 / static_cast<double>(step_.micro_batches));
  }

  // How many micro-batches this rank computes before the first backward.
  int64_t AheadOfBackward() const {
    if (stage_axis_.empty()) return 1;
    const absl::StatusOr<int> axis = step_.mesh.AxisIndex(stage_axis_);
    if (!axis.ok()) return 1;  // the plan was refused
    const int64_t stage = step_.mesh.Coordinate(context_.rank())[*axis];
    return MicroBatchesInFlight(stage, step_.mesh.axis_size(*axis), step_.micro_batches);
  }

  absl::Status Update() {
    if (optimizer_ != nullptr) {
      ClipResult clip;
      if (step_.clip > 0) {
        DT_ASSIGN_OR_RETURN(clip, ClipByGlobalNorm(parameters_, step_.clip));
      }
      DT_RETURN_IF_ERROR(optimizer_->Step(1e-3, clip.scale));
    }
    for (DistributedTensor& parameter : parameters_) parameter.ClearGrad();
    return absl::OkStatus();
  }

  // Makes the inputs in the layout that the model's first edges want, as a loader that knows the
  // plan would.
  absl::Status MakeInputs() {
    const Dims shape = {step_.batch / step_.micro_batches, step_.sequence};
    Layout layout = Layout::Replicated(step_.mesh, 2);
    {
      const NoGrad no_grad(context_);
      DT_ASSIGN_OR_RETURN(const DistributedTensor whole,
                          Full(context_, layout, shape, DType::kI32, 0));
      const DeviceMesh* const stage = model_->mesh() ? &*model_->mesh() : nullptr;
      DT_ASSIGN_OR_RETURN(const DistributedTensor placed,
                          AtEdges(whole, model_->edges(), &ModuleEdge::input, /*index=*/0, stage));
      layout = placed.layout();
    }
    const int64_t before = LiveBytes(context_);
    for (int64_t i = 0; i < step_.micro_batches; ++i) {
      Inputs& inputs = inputs_.emplace_back();
      DT_ASSIGN_OR_RETURN(inputs.ids, Full(context_, layout, shape, DType::kI32, 0));
      DT_ASSIGN_OR_RETURN(inputs.targets, Full(context_, layout, shape, DType::kI32, 0));
    }
    memory_.inputs = LiveBytes(context_) - before;
    return absl::OkStatus();
  }

  Context& context_;
  const TrainingStep& step_;
  const int64_t empty_;
  std::unique_ptr<Module> model_;
  std::vector<DistributedTensor> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  struct Inputs {
    DistributedTensor ids, targets;
  };
  std::vector<Inputs> inputs_;  // of each micro-batch
  std::string stage_axis_;      // empty: the plan has no stages
  MemoryFigures memory_;
  StageSeconds micro_batch_;
};

}  // namespace

TensorOr NextTokenLoss(Module& model, const DistributedTensor& ids,
                       const DistributedTensor& targets) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor logits, model(ids));
  DT_ASSIGN_OR_RETURN(const Layout there, targets.layout().OnMesh(logits.mesh()));
  return Mean(CrossEntropy(logits, targets.Redistribute(there)), {0, 1});
}

TensorOr MeanOfResults(Module& model, const DistributedTensor& ids, const DistributedTensor&) {
  const std::vector<TensorOr> operands(model.operand_names().size(), ids);
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results, model.Call(operands));
  TensorOr sum;
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<int> dims(results[i].ndim());
    std::iota(dims.begin(), dims.end(), 0);
    const TensorOr mean = Mean(results[i], dims);
    sum = i == 0 ? mean : Add(sum, mean);
  }
  return sum;
}

absl::StatusOr<CountedStep> CountStep(Context& context, const TrainingStep& step) {
  DT_RETURN_IF_ERROR(CheckStep(step));
  Steps steps(context, step);
  DT_RETURN_IF_ERROR(steps.MakeModel());
  DT_RETURN_IF_ERROR(steps.Step(nullptr));
  steps.CountGathered();
  StepMeter meter(context, steps.model());
  DT_RETURN_IF_ERROR(steps.Step(&meter));
  meter.End();
  CountedStep counted;
  counted.figures.rank = context.rank();
  counted.figures.memory = steps.memory();
  counted.micro_batch = steps.micro_batch();
  DT_RETURN_IF_ERROR(steps.Saved(meter));
  counted.figures.peak_phase = meter.peak_phase();
  counted.figures.peak_module = meter.peak_module();
  counted.figures.modules = meter.TakeModules();
  counted.placed = PlacedModules(steps.model(), counted.figures.modules);
  for (const PlacedModule& module : counted.placed) {
    for (const PlacedParameter& own : module.parameters) {
      if (!own.shared) counted.parameters.push_back(own.figures);
    }
  }
  return counted;
}

absl::StatusOr<std::vector<std::string>> UsualRecompute(const TrainingStep& step) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, step.model());
  std::vector<std::string> patterns;
  model->VisitModules([&](const std::string& path, Module&) {
    std::vector<std::string> parts = absl::StrSplit(path, '.');
    const auto number = std::find_if(parts.begin(), parts.end(), internal::IsNumber);
    if (number == parts.end()) return;
    *number = "*";
    parts.erase(number + 1, parts.end());
    const std::string pattern = absl::StrJoin(parts, ".");
    if (std::find(patterns.begin(), patterns.end(), pattern) != patterns.end()) return;
    patterns.push_back(pattern);
  });
  return patterns;
}

}  // namespace dtensor
