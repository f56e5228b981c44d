// The job: predict, train on ranks that are threads or processes, compare with one rank.
#ifndef DTENSOR_EXAMPLES_TRAINING_RUN_H_
#define DTENSOR_EXAMPLES_TRAINING_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/examples/training/corpus.h"
#include "dtensor/examples/training/traffic.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tensor/context.h"

namespace dtensor::training {

// A parameter's name and global values, as f32.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct RunResult {
  int64_t first_step = 0;                  // above 0 if the run was resumed
  std::vector<double> losses, grad_norms;  // of each step from first_step on
  // The last loss is infinite or NaN; the run stops there, since no later step could recover.
  bool diverged = false;
  double heldout_loss = 0;       // NaN if it diverged
  double tokens_per_second = 0;  // of the steps after the first
  StepTraffic predicted, counted;
  std::vector<NamedTensor> initial_weights, first_gradients;  // when asked for
};

struct TrainOptions {
  int64_t eval_batches = 4;          // of held-out text, at the end
  std::optional<double> stop_below;  // every 25 steps: stop when the held-out loss is below
  bool keep_tensors = false;         // fill initial_weights and first_gradients
  // Checkpoints (docs/checkpoints.md). save: their folder; empty: none. save_every: how many steps
  // lie between them (there is always one after the last step). keep_last: how many are kept.
  // resume: continue from the latest one in the folder. Without `resume`, a folder that has a
  // checkpoint is refused, so that a later resume cannot pick the wrong one of two runs.
  std::string save;
  int64_t save_every = 100;
  int keep_last = 2;
  bool resume = false;
  bool as_launched = true;                   // false: on threads, even if a launcher was used
  Device::Kind device = Device::Kind::kCpu;  // or kCuda: only with threads, which share the GPUs
  ContextOptions contexts;                   // of each rank: traces (docs/tracing.md)
  std::function<void(int64_t step, double loss)> progress;  // on rank 0
  // Called with the trained model on every rank, unless the run diverged. Its status is the run's.
  std::function<absl::Status(Module& model)> finish;
};

// Trains config.steps steps on config.mesh.size() ranks. The ranks are threads; or, if a launcher
// says that this process is a rank and options.as_launched is set, the processes that make this
// call (RunWorld). First, each rank predicts its communication and memory by running the program on
// a meta device. `corpus` is the text, or the reason why this process cannot train: then no process
// does. The result is on rank 0; in other processes it is empty. Errors, the same on all ranks:
// those of `corpus`, prefixed with the ranks that have no text; kInvalidArgument: those of
// Trainer::Create, for more than fits into memory, a wrong number of processes, different texts; a
// rank's failure.
absl::StatusOr<RunResult> Train(const TrainConfig& config, const absl::StatusOr<Corpus>& corpus,
                                const TrainOptions& options);

// The relative differences of a run from another run of the same steps.
struct Difference {
  double loss = 0, grad_norm = 0;  // the largest over the steps both have
  double gradient = 0;             // the largest relative RMS over parameters, at step 0
  std::string worst_gradient;      // the parameter with that value
};
Difference Compare(const RunResult& run, const RunResult& reference);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_RUN_H_
