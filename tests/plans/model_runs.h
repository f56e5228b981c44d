// A few steps of training a model by a plan: what has to be the same on every mesh.
#ifndef DTENSOR_TESTS_PLANS_MODEL_RUNS_H_
#define DTENSOR_TESTS_PLANS_MODEL_RUNS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor {

// A model, and how it is planned.
struct TestedModel {
  std::function<std::unique_ptr<Module>()> make;
  std::function<absl::StatusOr<TensorParallelism>(const DeviceMesh&, const TensorParallelOptions&)>
      plan;
  int64_t vocab;      // of its first operand, token ids; other operands are 0 or 1
  std::string units;  // the modules that FullyShard gathers, beside the model itself
  // Gives it other first values, where it lies. Null: those of the plan's seed.
  std::function<absl::Status(Module&, const DeviceMesh&)> load;
};

// Of a Transformer, Gpt2 or BertModel.
template <typename Model, typename Config>
TestedModel Tested(const Config& config, std::string units) {
  return {
      .make = [config]() -> std::unique_ptr<Module> { return std::make_unique<Model>(config); },
      .plan = [config](const DeviceMesh& mesh,
                       const TensorParallelOptions& options) -> absl::StatusOr<TensorParallelism> {
        return PlanTensorParallel(config, mesh, options);
      },
      .vocab = config.vocab,
      .units = std::move(units)};
}

struct ModelRun {
  std::string mesh = "tp=1";  // "fsdp": FullyShard
  bool sequence_parallel = true, recompute = false, training = true, uneven = false;
  int fully_shard = 3;
  DType dtype = DType::kF64;
  int steps = 0;      // of the optimizer; 0: backward once
  bool muon = false;  // for matrices; else AdamW
  int64_t sequence = 8;
};

// Of all ranks alike, global and row-major, by the names of state_dict.h; traffic is rank 0's.
struct ModelOutcome {
  using Values = std::map<std::string, std::vector<double>>;
  Values results, gradients, weights;  // of the first step; weights after the last
  TrafficTable forward;                // of the first step
};
inline auto ValueFields(ModelOutcome& o) {
  return std::tie(o.results, o.gradients, o.weights, o.forward);
}

// A model of one result gives logits, and its loss is their cross-entropy; that of others a sum of
// all results by fixed numbers. Errors: what the library refuses; kInternal when two ranks end with
// unlike numbers; kUnimplemented where the suite has no such ranks (suite_ranks.h).
absl::StatusOr<ModelOutcome> RunModel(const TestedModel& tested, const ModelRun& run);

// An error of a tensor is the RMS of what differs, relative to the larger of the tensor's RMS and,
// of gradients, `floor` of that of all gradients. AdamW makes steps of any gradient, also of one
// that is 0 but for rounding, as that of a key's bias: weights have a bound of their own.
struct ModelTolerance {
  double error = 1e-11, of_weights = 1e-7, floor = 1e-3;
};
// The tensors whose errors are larger; empty: none.
std::string Difference(const ModelOutcome& outcome, const ModelOutcome& reference,
                       const ModelTolerance& tolerance = {});

// By axes and kind: "tp all-gather".
std::map<std::string, int64_t> CallsOf(const TrafficTable& table);

}  // namespace dtensor

#endif  // DTENSOR_TESTS_PLANS_MODEL_RUNS_H_
