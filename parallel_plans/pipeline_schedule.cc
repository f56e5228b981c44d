#include "dtensor/parallel_plans/pipeline_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The steps of 1F1B, of which `add_backward` adds the backward of a micro-batch.
template <typename AddBackward>
std::vector<PipelineStep> InTurn(int64_t ahead, int64_t micro_batches, AddBackward add_backward) {
  std::vector<PipelineStep> steps;
  for (int64_t i = 0; i < micro_batches + ahead; ++i) {
    if (i < micro_batches) steps.push_back({PipelineWork::kForward, i});
    if (i >= ahead) add_backward(steps, i - ahead);
  }
  return steps;
}

char LetterOf(PipelineWork work) { return "FBIW"[static_cast<int>(work)]; }

double SecondsOf(PipelineWork work, const StageSeconds& stage) {
  switch (work) {
    case PipelineWork::kForward:
      return stage.forward;
    case PipelineWork::kBackward:
      return stage.inputs + stage.weights;
    case PipelineWork::kInputGradients:
      return stage.inputs;
    case PipelineWork::kWeightGradients:
      return stage.weights;
  }
  return 0;
}

// Stages that work through their steps, each as soon as what it needs is there.
class Clock {
 public:
  Clock(PipelineSchedule schedule, absl::Span<const StageSeconds> stages, int64_t micro_batches)
      : seconds_(stages) {
    const auto n = static_cast<int64_t>(stages.size());
    for (int64_t s = 0; s < n; ++s) {
      stages_.push_back({PipelineSteps(schedule, s, n, micro_batches)});
      stages_.back().forward.assign(micro_batches, -1);
      stages_.back().backward.assign(micro_batches, -1);
    }
  }

  double Run() {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (Step(s)) moves = true;
      }
    }
    double last = 0;
    for (const Stage& stage : stages_) last = std::max(last, stage.now);
    return last;
  }

 private:
  struct Stage {
    std::vector<PipelineStep> steps;
    size_t next = 0;
    double now = 0;
    std::vector<double> forward, backward;  // of each micro-batch: when it was over; -1: it is not
  };

  // Takes the next step of stage s. Returns false if there is none, or it has to wait.
  bool Step(size_t s) {
    Stage& stage = stages_[s];
    if (stage.next == stage.steps.size()) return false;
    const auto [work, i] = stage.steps[stage.next];
    const bool is_backward =
        work == PipelineWork::kBackward || work == PipelineWork::kInputGradients;
    double ready = 0;
    if (work == PipelineWork::kForward && s > 0) ready = stages_[s - 1].forward[i];
    if (is_backward && s + 1 < stages_.size()) ready = stages_[s + 1].backward[i];
    if (ready < 0) return false;
    stage.now = std::max(stage.now, ready) + SecondsOf(work, seconds_[s]);
    if (work == PipelineWork::kForward) stage.forward[i] = stage.now;
    if (is_backward) stage.backward[i] = stage.now;
    ++stage.next;
    return true;
  }

  const absl::Span<const StageSeconds> seconds_;
  std::vector<Stage> stages_;
};

}  // namespace

absl::string_view ToString(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::k1F1B ? "1f1b" : "zero_bubble";
}

absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name) {
  for (const PipelineSchedule one : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
    if (name == ToString(one)) return one;
  }
  return InvalidArgument({"there is no schedule '", name, "'; take 1f1b or zero_bubble"});
}

int64_t MicroBatchesInFlight(int64_t stage, int64_t stages, int64_t micro_batches) {
  return std::min(stages - stage, micro_batches);
}

std::vector<PipelineStep> PipelineSteps(PipelineSchedule schedule, int64_t stage, int64_t stages,
                                        int64_t micro_batches, bool sends_wait) {
  const int64_t ahead =
      std::max<int64_t>(MicroBatchesInFlight(stage, stages, micro_batches) - 1, 0);
  // Nobody waits for what the first stage computes backward.
  if (schedule == PipelineSchedule::k1F1B || stage == 0) {
    return InTurn(ahead, micro_batches, [](std::vector<PipelineStep>& steps, int64_t i) {
      steps.push_back({PipelineWork::kBackward, i});
    });
  }
  std::vector<PipelineStep> steps =
      InTurn(ahead, micro_batches, [=](std::vector<PipelineStep>& steps, int64_t i) {
        const PipelineStep weights = {PipelineWork::kWeightGradients, i - stage};
        if (sends_wait && i >= stage) steps.push_back(weights);
        steps.push_back({PipelineWork::kInputGradients, i});
        if (!sends_wait && i >= stage) steps.push_back(weights);
      });
  for (int64_t i = std::max<int64_t>(micro_batches - stage, 0); i < micro_batches; ++i) {
    steps.push_back({PipelineWork::kWeightGradients, i});
  }
  return steps;
}

std::string ToString(absl::Span<const PipelineStep> steps) {
  std::string text;
  for (const PipelineStep& step : steps) {
    absl::StrAppend(&text, text.empty() ? "" : " ", std::string(1, LetterOf(step.work)),
                    step.micro_batch);
  }
  return text;
}

double PipelineSeconds(PipelineSchedule schedule, absl::Span<const StageSeconds> stages,
                       int64_t micro_batches) {
  return Clock(schedule, stages, micro_batches).Run();
}

}  // namespace dtensor
