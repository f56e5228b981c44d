// A small training run, on a mesh by a plan, that can be saved and loaded.
#ifndef DTENSOR_TESTS_CHECKPOINT_TRAINING_RUN_H_
#define DTENSOR_TESTS_CHECKPOINT_TRAINING_RUN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

struct TrainingPlace {
  std::string mesh = "tp=1", plan = "none";
  bool fused = false, tied = false, masters = false, sgd = false;
  int64_t experts = 0;  // of a mixture in each block, of which a token picks at most two
  DType dtype = DType::kF32;
  uint64_t seed = 1;  // of the weights before anything is loaded
};

// Twelve of them: 1 to 4 ranks, all kinds of plans, fused projections in every other one.
std::vector<TrainingPlace> TrainingPlaces();
// Of a model with mixtures of experts.
std::vector<TrainingPlace> MixturePlaces(int64_t experts);
int RanksOf(const TrainingPlace& place);

// All values of a run, global, by names: of 32 bits as they are, others converted.
using RunValues = std::map<std::string, std::vector<double>>;

class TrainingRun {
 public:
  static absl::StatusOr<std::unique_ptr<TrainingRun>> Create(Context& context,
                                                             const TrainingPlace& place);
  // Step number state().step, on tokens that depend on it and on a number of the Context's random
  // state. Returns the loss. Collective.
  absl::StatusOr<double> Step();
  // Of parameters and optimizer states, by the names of checkpoints. Collective.
  absl::StatusOr<RunValues> Values();

  TrainingState& state() { return state_; }
  Transformer& model() { return model_; }

 private:
  TrainingRun(Context& context, const TransformerConfig& config, DeviceMesh mesh)
      : context_(context), mesh_(std::move(mesh)), model_(config) {}

  Context& context_;
  const DeviceMesh mesh_;
  Transformer model_;
  std::vector<DistributedTensor> parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  TrainingState state_;
};

}  // namespace dtensor

#endif  // DTENSOR_TESTS_CHECKPOINT_TRAINING_RUN_H_
