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

// Parameter name, global values as f32.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct RunResult {
  int64_t first_step = 0;                  // above 0 where the run was resumed
  std::vector<double> losses, grad_norms;  // of each step from there on
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
  // Checkpoints (docs/checkpoints.md): their folder, unless it is empty; after how many steps there
  // is one (and after the last one), and how many of them stay; and whether to go on from the
  // latest one that is there. A folder that has one is refused otherwise: of two runs one would be
  // resumed for the other.
  std::string save;
  int64_t save_every = 100;
  int keep_last = 2;
  bool resume = false;
  bool as_launched = true;                   // false: on threads, whoever started this process
  Device::Kind device = Device::Kind::kCpu;  // or kCuda: threads alone, which share the GPUs
  ContextOptions contexts;                   // of each rank: traces (docs/tracing.md)
  std::function<void(int64_t step, double loss)> progress;  // on rank 0
  // With the model that was trained, on every rank, unless it diverged. What it returns the run
  // does.
  std::function<absl::Status(Module& model)> finish;
};

// Trains config.steps steps on config.mesh.size() ranks: threads, or, where a launcher says that
// this process is a rank and options.as_launched, the processes that make this call (RunWorld). A
// prediction is made first, each rank's by the program itself on a meta device. `corpus` is the
// text, or why this process cannot train: then none does. The result is rank 0's: in other
// processes it is empty. Errors, the same on all ranks: of `corpus`, behind the ranks that have
// none; kInvalidArgument: of Trainer::Create, for more than fits into memory, another number of
// processes, unlike texts; a rank's failure.
absl::StatusOr<RunResult> Train(const TrainConfig& config, const absl::StatusOr<Corpus>& corpus,
                                const TrainOptions& options);

// How far a run is from another of the same steps, relatively.
struct Difference {
  double loss = 0, grad_norm = 0;  // the largest over the steps both have
  double gradient = 0;             // the largest relative RMS over parameters, at step 0
  std::string worst_gradient;      // of which parameter
};
Difference Compare(const RunResult& run, const RunResult& reference);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_RUN_H_
