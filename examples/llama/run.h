// The job: predict, train on ranks that are threads, compare with one rank.
#ifndef DTENSOR_EXAMPLES_LLAMA_RUN_H_
#define DTENSOR_EXAMPLES_LLAMA_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/examples/llama/corpus.h"
#include "dtensor/examples/llama/trainer.h"
#include "dtensor/runtime/comm/communicator.h"

namespace dtensor::llama {

// What one training step communicates and holds: collectives that a rank takes part in (the most of
// any rank), bytes received by all ranks together, per axes and kind.
struct StepTraffic {
  TrafficTable table;  // calls: of the busiest rank; messages and bytes: summed over ranks
  // Per rank: live tensor bytes at their highest, since the model was made.
  std::vector<int64_t> peak_bytes;
};

// Parameter name, global values as f32.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct RunResult {
  std::vector<double> losses, grad_norms;  // of each step
  // A loss that is infinite or NaN is the last one: no later step could mend it.
  bool diverged = false;
  double heldout_loss = 0;       // NaN where it diverged
  double tokens_per_second = 0;  // of the steps after the first
  StepTraffic predicted, counted;
  std::vector<NamedTensor> initial_weights, first_gradients;  // when asked for
};

struct TrainOptions {
  int64_t eval_batches = 4;          // of held-out text, at the end
  std::optional<double> stop_below;  // every 25 steps: stop when the held-out loss is below
  bool keep_tensors = false;         // fill initial_weights and first_gradients
  std::function<void(int64_t step, double loss)> progress;  // on rank 0
};

// What `ranks` ranks would communicate in a step and hold, from the program itself on a meta
// device. Errors: kInvalidArgument: of Trainer::Create; for more than fits into memory.
absl::StatusOr<StepTraffic> Predict(const TrainConfig& config);

// Trains config.steps steps on config.mesh.size() threads. The prediction is made first, on every
// rank's behalf. Errors: of Predict; a rank's failure.
absl::StatusOr<RunResult> Train(const TrainConfig& config, const Corpus& corpus,
                                const TrainOptions& options);

// How far a run is from another of the same steps, relatively.
struct Difference {
  double loss = 0, grad_norm = 0;  // the largest over the steps both have
  double gradient = 0;             // the largest relative RMS over parameters, at step 0
  std::string worst_gradient;      // of which parameter
};
Difference Compare(const RunResult& run, const RunResult& reference);

}  // namespace dtensor::llama

#endif  // DTENSOR_EXAMPLES_LLAMA_RUN_H_
