#include "dtensor/parallel_plans/pipeline.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"

namespace dtensor {
namespace {

// While it lives, what this rank sends to the next stage waits until that stage has brought back a
// gradient: it computes that first.
class DeferredSends {
 public:
  explicit DeferredSends(Context& context) : context_(context), before_(context.defers_sends()) {
    context_.set_defers_sends(true);
  }
  ~DeferredSends() { context_.set_defers_sends(before_); }
  DeferredSends(const DeferredSends&) = delete;
  DeferredSends& operator=(const DeferredSends&) = delete;

 private:
  Context& context_;
  const bool before_;
};

// While it lives, these are the stages.
class StagesOn {
 public:
  StagesOn(Context& context, Context::Stages stages)
      : context_(context), before_(context.stages()) {
    context_.set_stages(std::move(stages));
  }
  ~StagesOn() { context_.set_stages(before_); }
  StagesOn(const StagesOn&) = delete;
  StagesOn& operator=(const StagesOn&) = delete;

 private:
  Context& context_;
  const Context::Stages before_;
};

absl::Status CheckArguments(const Context& context, const DeviceMesh& mesh, int64_t micro_batches,
                            const PipelineOptions& options) {
  if (!mesh.Contains(context.rank())) {
    return InvalidArgument({"RunPipeline: rank ", absl::StrCat(context.rank()), " is not on ",
                            mesh.ToString(), "; give the mesh of all stages"});
  }
  constexpr int64_t kMostMicroBatches = int64_t{1} << 20;
  if (micro_batches < 1 || micro_batches > kMostMicroBatches) {
    return InvalidArgument({"RunPipeline: ", absl::StrCat(micro_batches),
                            " micro-batches; give 1 or more, up to 2^20"});
  }
  if (options.bucket_bytes >= 0) return absl::OkStatus();
  return InvalidArgument({"RunPipeline: a bucket of ", absl::StrCat(options.bucket_bytes),
                          " bytes cannot be; take 0 for none, or more"});
}

}  // namespace

absl::StatusOr<std::string> StageAxisOf(const ParallelPlan& plan) {
  std::string axis;
  for (const ParallelPlan::Line& line : plan.lines()) {
    const Stage* const stage = line.style.As<Stage>();
    if (stage == nullptr || stage->axis == axis) continue;
    if (!axis.empty()) {
      return InvalidArgument({"plan line ", line.ToString(), ": other stages are on \"", axis,
                              "\"; put all stages on one axis"});
    }
    axis = stage->axis;
  }
  return axis;
}

namespace {

// The steps of one rank, one after the other.
class Steps {
 public:
  // Sends of micro-batches from `first_deferred` on are put off.
  Steps(Context& context, int64_t first_deferred, int64_t micro_batches,
        const std::function<TensorOr(int64_t)>& loss, const PipelineOptions& options)
      : context_(context),
        first_deferred_(first_deferred),
        loss_(loss),
        options_(options),
        losses_(micro_batches),
        weights_(micro_batches) {}

  absl::Status Run(const PipelineStep& step) {
    if (options_.on_step != nullptr) options_.on_step(step);
    const int64_t i = step.micro_batch;
    switch (step.work) {
      case PipelineWork::kForward:
        return Forward(i);
      case PipelineWork::kBackward:
        return Backward(std::move(losses_[i]), BackwardOptionsOf(i));
      case PipelineWork::kInputGradients: {
        DT_ASSIGN_OR_RETURN(weights_[i],
                            BackwardForInputs(std::move(losses_[i]), BackwardOptionsOf(i)));
        return absl::OkStatus();
      }
      case PipelineWork::kWeightGradients:
        return weights_[i].Finish();
    }
    return absl::OkStatus();
  }
  const TensorOr& sum() const { return sum_; }

 private:
  absl::Status Forward(int64_t i) {
    DistributedTensor& one = losses_[i];
    // After the first ones, a backward follows each forward.
    std::optional<DeferredSends> deferred;
    if (i >= first_deferred_) deferred.emplace(context_);
    DT_ASSIGN_OR_RETURN(one, loss_(i));
    if (!one.defined()) return InvalidArgument({"RunPipeline: the loss is undefined"});
    if (&one.context() != &context_) {
      return InvalidArgument({"RunPipeline: the loss ", one.ToString(), " belongs to another ",
                              "Context; give that of the model"});
    }
    sum_ = i == 0 ? TensorOr(one.Detach()) : Add(sum_, one.Detach());
    return sum_.status();
  }

  BackwardOptions BackwardOptionsOf(int64_t i) const {
    const bool is_last = i + 1 == static_cast<int64_t>(losses_.size());
    return {.bucket_bytes = is_last ? options_.bucket_bytes : 0};
  }

  Context& context_;
  const int64_t first_deferred_;
  const std::function<TensorOr(int64_t)>& loss_;
  const PipelineOptions& options_;
  std::vector<DistributedTensor> losses_;
  std::vector<DeferredGradients> weights_;
  TensorOr sum_;
};

// Without an axis, one.
absl::StatusOr<Context::Stages> StagesOf(const DeviceMesh& mesh, absl::string_view axis) {
  if (axis.empty()) return Context::Stages{"", {mesh}};
  const absl::StatusOr<int> index = mesh.AxisIndex(axis);
  if (!index.ok()) return InvalidArgument({"RunPipeline: ", index.status().message()});
  Context::Stages stages{std::string(axis), {}};
  for (int64_t k = 0; k < mesh.axis_size(*index); ++k) {
    DT_ASSIGN_OR_RETURN(stages.meshes.emplace_back(), mesh.At(axis, k));
  }
  return stages;
}

}  // namespace

TensorOr RunPipeline(Context& context, const DeviceMesh& mesh, absl::string_view axis,
                     int64_t micro_batches,
                     const std::function<TensorOr(int64_t micro_batch)>& loss,
                     const PipelineOptions& options) {
  DT_RETURN_IF_ERROR(CheckArguments(context, mesh, micro_batches, options));
  DT_ASSIGN_OR_RETURN(Context::Stages meshes, StagesOf(mesh, axis));
  if (!axis.empty() && !context.stages().axis.empty()) {
    return InvalidArgument({"RunPipeline: on axis \"", axis, "\", in the loss of another on \"",
                            context.stages().axis, "\"; a stage cannot be cut again"});
  }
  const int64_t stages = meshes.meshes.size();
  int64_t stage = 0;
  while (!meshes.meshes[stage].Contains(context.rank())) ++stage;
  const StagesOn stages_on(context, std::move(meshes));
  // Without stages nothing is put off.
  const int64_t first_deferred = axis.empty() ? micro_batches : stages - 1 - stage;
  Steps steps(context, first_deferred, micro_batches, loss, options);
  // Without staging, peers read this rank's memory, and need no call of it.
  const bool sends_wait = context.communicator().staging_bytes() > 0;
  const auto run = [&]() -> absl::Status {
    for (const PipelineStep& step :
         PipelineSteps(options.schedule, stage, stages, micro_batches, sends_wait)) {
      const absl::Status status = steps.Run(step);
      if (status.ok()) continue;
      // A refusal of the first micro-batch meets all ranks while none waits for another; what they
      // have put off is not wanted any more. A later one leaves others waiting.
      context.ForgetLateSends();
      const bool meets_all =
          axis.empty() || (step.micro_batch == 0 && step.work != PipelineWork::kWeightGradients);
      return meets_all ? status : context.communicator().Fail(status);
    }
    return absl::OkStatus();
  };
  try {
    DT_RETURN_IF_ERROR(run());
  } catch (...) {
    // It leaves other ranks waiting, and this one with what it has put off.
    context.ForgetLateSends();
    context.communicator().Fail(NoThrow([]() -> absl::Status { throw; })).IgnoreError();
    throw;
  }
  return steps.sum();
}

}  // namespace dtensor
