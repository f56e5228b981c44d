// What each stage of a pipeline does in a training step, in which order, and how long that takes.
// Pure functions; RunPipeline (pipeline.h) carries the steps out.
#ifndef DTENSOR_PARALLEL_PLANS_PIPELINE_SCHEDULE_H_
#define DTENSOR_PARALLEL_PLANS_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

enum class PipelineSchedule : uint8_t {
  // Some micro-batches forward, more of them the earlier the stage is; then one backward and one
  // forward in turn (Narayanan et al. 2021, "PipeDream-Flush"; Megatron's schedule). A stage is
  // idle for s - 1 times forward and backward of one micro-batch, with s stages.
  k1F1B,
  // The same order, but a stage first computes the gradients of activations alone, for which the
  // stage before it waits. Those of weights it computes for the micro-batch that came `stage`
  // micro-batches earlier, and the last ones at the end, while others still work (Qi et al. 2023,
  // "ZB-H1"). If all three take equally long, a stage is idle for a third of the time above. It
  // keeps what products read, and the gradients of their results, of up to `stage` micro-batches
  // longer.
  kZeroBubble,
};
absl::string_view ToString(PipelineSchedule schedule);  // "1f1b", "zero_bubble"
// Errors: kInvalidArgument, listing the names.
absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name);

enum class PipelineWork : uint8_t {
  kForward,          // F
  kBackward,         // B: both of what follows
  kInputGradients,   // I: backward without what is put off (BackwardForInputs, autograd.h)
  kWeightGradients,  // W: what was put off
};

struct PipelineStep {
  PipelineWork work = PipelineWork::kForward;
  int64_t micro_batch = 0;
  friend bool operator==(const PipelineStep&, const PipelineStep&) = default;
};

// What stage `stage` of `stages` does, in order. `sends_wait`: a rank that sends waits until its
// peers receive. Then gradients of weights come behind a forward, and not behind a backward, where
// this rank's neighbours wait for it to receive: that would make zero bubble slower than 1F1B. (If
// F, I and W take equally long, a stage then waits 2 (s - 1) times that, not s - 1 times.)
// Requires: 0 <= stage < stages, micro_batches >= 0.
std::vector<PipelineStep> PipelineSteps(PipelineSchedule schedule, int64_t stage, int64_t stages,
                                        int64_t micro_batches, bool sends_wait = false);
// "F0 F1 I0 F2 I1 W0"
std::string ToString(absl::Span<const PipelineStep> steps);

// The micro-batches of which a stage keeps all that it saved, at most: so many it computes forward
// before its first backward. Requires: as above.
int64_t MicroBatchesInFlight(int64_t stage, int64_t stages, int64_t micro_batches);

// How long one micro-batch takes a stage: forward, and the two parts of backward.
struct StageSeconds {
  double forward = 0, inputs = 0, weights = 0;
  double all() const { return forward + inputs + weights; }
};
// How long all stages take for all micro-batches, if moving activations takes no time of its own
// and no stage waits for another to receive. Requires: a stage or more.
double PipelineSeconds(PipelineSchedule schedule, absl::Span<const StageSeconds> stages,
                       int64_t micro_batches);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PIPELINE_SCHEDULE_H_
