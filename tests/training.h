// A few steps of training a small transformer: what several suites hold to be the same, on every
// mesh, twice, or on another device.
#ifndef DTENSOR_TESTS_TRAINING_H_
#define DTENSOR_TESTS_TRAINING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

struct TrainingRun {
  // "tp" splits the layers, "dp" the batch, "cp" the sequence (zigzag, by ring attention); other
  // axes have no part in the plan.
  std::string mesh = "tp=1";
  bool sequence_parallel = true;
  std::optional<ParallelPlan> plan;  // in place of that one
  bool allow_uneven = false;
  TransformerConfig model = SmallTransformer();
  int64_t batch = 4, sequence = 8;
  bool recompute = false;  // each layer
  DType dtype = DType::kF32;
  // The first values are rounded to this type before they become `dtype`: two types can start from
  // the same numbers. One type where the plan shards parameters between uses.
  DType first_values = DType::kF32;
  int steps = 3;
  uint64_t seed = 3;  // of the first values
  RunOptions options;
};

// Of all ranks alike; traffic is rank 0's. Equality is of bits, but for NaN, which there is none
// of.
struct Trained {
  std::vector<double> losses, norms;  // of each step; norms: of all gradients together
  // By parameter, global and row-major.
  using Values = std::map<std::string, std::vector<double>>;
  Values first_values, first_gradients, parameters;  // parameters: after the last step
  std::map<std::string, std::string> layouts;        // of parameters, and of the logits
  TrafficTable traffic;
  friend bool operator==(const Trained&, const Trained&) = default;
};

// All elements of a tensor of floats, global and row-major, as f64.
absl::StatusOr<std::vector<double>> WideValues(const DistributedTensor& tensor);

// Token ids [batch, sequence], replicated: element i is i * factor mod `below`.
TensorOr StepTokens(Context& context, const DeviceMesh& mesh, const Dims& shape, int64_t factor,
                    int64_t below);
inline auto ValueFields(Trained& t) {
  return std::tie(t.losses, t.norms, t.first_values, t.first_gradients, t.parameters, t.layouts,
                  t.traffic);
}

// AdamW of all, or Muon of those that are matrices (or stacks of them) and AdamW of the others.
absl::StatusOr<std::unique_ptr<Optimizer>> AdamWOrMuon(
    const std::vector<DistributedTensor>& parameters, bool muon);

// Forward, backward, clipping and AdamW, `run.steps` times on one batch. Errors: what the library
// refuses; kInternal when two ranks end with unlike numbers; kUnimplemented where the suite has no
// such ranks (suite_ranks.h).
absl::StatusOr<Trained> Train(const TrainingRun& run);

// |a - b| / |b|, over all values of all parameters' worst.
double WorstRelativeRms(const Trained::Values& a, const Trained::Values& b);

}  // namespace dtensor

#endif  // DTENSOR_TESTS_TRAINING_H_
