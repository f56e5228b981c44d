#include "dtensor/parallel_plans/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// While it lives, what this rank sends to the next stage waits until that stage has brought back a
// gradient: it computes that first.
class DeferredSends {
 public:
  explicit DeferredSends(Context& context) : context_(context) { context_.set_defers_sends(true); }
  ~DeferredSends() { context_.set_defers_sends(false); }
  DeferredSends(const DeferredSends&) = delete;
  DeferredSends& operator=(const DeferredSends&) = delete;

 private:
  Context& context_;
};

absl::Status CheckArguments(const Context& context, const DeviceMesh& mesh, int64_t micro_batches,
                            const BackwardOptions& options) {
  if (!mesh.Contains(context.rank())) {
    return InvalidArgument({"RunPipeline: rank ", absl::StrCat(context.rank()), " is not on ",
                            mesh.ToString(), "; give the mesh of all stages"});
  }
  if (micro_batches < 1) {
    return InvalidArgument(
        {"RunPipeline: ", absl::StrCat(micro_batches), " micro-batches; give 1 or more"});
  }
  if (!options.gradient.defined() && !options.retain_graph) return absl::OkStatus();
  return InvalidArgument({"RunPipeline: options has a gradient, or retain_graph; each loss is ",
                          "walked once, from a gradient of 1: Scale() it in `loss`"});
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

int64_t MicroBatchesInFlight(int64_t stage, int64_t stages, int64_t micro_batches) {
  return std::min(stages - stage, micro_batches);
}

std::vector<PipelineStep> OneForwardOneBackward(int64_t stage, int64_t stages,
                                                int64_t micro_batches) {
  const int64_t ahead =
      std::max<int64_t>(MicroBatchesInFlight(stage, stages, micro_batches) - 1, 0);
  std::vector<PipelineStep> steps;
  for (int64_t i = 0; i < ahead; ++i) steps.push_back({false, i});
  for (int64_t i = ahead; i < micro_batches; ++i) {
    steps.push_back({false, i});
    steps.push_back({true, i - ahead});
  }
  for (int64_t i = micro_batches - ahead; i < micro_batches; ++i) steps.push_back({true, i});
  return steps;
}

namespace {

// The steps of one rank, one after the other.
class Steps {
 public:
  // Sends of micro-batches from `first_deferred` on are put off.
  Steps(Context& context, int64_t first_deferred, int64_t micro_batches,
        const std::function<TensorOr(int64_t)>& loss, const BackwardOptions& options)
      : context_(context),
        first_deferred_(first_deferred),
        loss_(loss),
        options_(options),
        losses_(micro_batches) {}

  absl::Status Run(const PipelineStep& step) {
    DistributedTensor& one = losses_[step.micro_batch];
    if (step.backward) {
      BackwardOptions now = options_;
      if (step.micro_batch + 1 < static_cast<int64_t>(losses_.size())) now.bucket_bytes = 0;
      return Backward(std::exchange(one, DistributedTensor()), now);
    }
    // After the first ones, a backward follows each forward.
    std::optional<DeferredSends> deferred;
    if (step.micro_batch >= first_deferred_) deferred.emplace(context_);
    DT_ASSIGN_OR_RETURN(one, loss_(step.micro_batch));
    if (!one.defined()) return InvalidArgument({"RunPipeline: the loss is undefined"});
    sum_ = step.micro_batch == 0 ? TensorOr(one.Detach()) : Add(sum_, one.Detach());
    return sum_.status();
  }
  const TensorOr& sum() const { return sum_; }

 private:
  Context& context_;
  const int64_t first_deferred_;
  const std::function<TensorOr(int64_t)>& loss_;
  const BackwardOptions& options_;
  std::vector<DistributedTensor> losses_;
  TensorOr sum_;
};

// Which stage a rank is, of how many.
struct Place {
  int64_t stage, stages;
};
absl::StatusOr<Place> PlaceOn(const DeviceMesh& mesh, absl::string_view axis, int rank) {
  if (axis.empty()) return Place{0, 1};
  const absl::StatusOr<int> index = mesh.AxisIndex(axis);
  if (!index.ok()) return InvalidArgument({"RunPipeline: ", index.status().message()});
  return Place{mesh.Coordinate(rank)[*index], mesh.axis_size(*index)};
}

}  // namespace

TensorOr RunPipeline(Context& context, const DeviceMesh& mesh, absl::string_view axis,
                     int64_t micro_batches,
                     const std::function<TensorOr(int64_t micro_batch)>& loss,
                     const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(CheckArguments(context, mesh, micro_batches, options));
  DT_ASSIGN_OR_RETURN(const Place place, PlaceOn(mesh, axis, context.rank()));
  const auto [stage, stages] = place;
  // Without stages nothing is put off.
  const int64_t first_deferred = axis.empty() ? micro_batches : stages - 1 - stage;
  Steps steps(context, first_deferred, micro_batches, loss, options);
  for (const PipelineStep& step : OneForwardOneBackward(stage, stages, micro_batches)) {
    const absl::Status status = steps.Run(step);
    if (status.ok()) continue;
    // A refusal of the first micro-batch meets all ranks while none waits for another; what they
    // have put off is not wanted any more. A later one leaves others waiting.
    context.ForgetLateSends();
    return step.micro_batch == 0 || axis.empty() ? status : context.communicator().Fail(status);
  }
  return steps.sum();
}

}  // namespace dtensor
