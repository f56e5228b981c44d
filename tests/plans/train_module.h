// Trains a module of any kind under a plan, and compares with one rank.
#ifndef DTENSOR_TESTS_PLANS_TRAIN_MODULE_H_
#define DTENSOR_TESTS_PLANS_TRAIN_MODULE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

using ModulePtr = std::unique_ptr<Module>;

struct ModuleRun {
  std::function<ModulePtr()> make;
  Dims x = {4, 6, 8};                                  // random; [b, s]: ids below kWords
  std::set<std::string> recomputed = {}, frozen = {};  // paths of modules, of parameters
};
inline constexpr int64_t kWords = 10;

struct MeshAndPlan {
  std::string mesh = "none=1", plan;
};

struct ModuleOutcome {
  using Values = std::map<std::string, std::vector<double>>;  // by path
  std::vector<double> y;
  Values gradients, weights;  // of the first step; after three
  TrafficTable forward;       // of the first step
};

// All parameters and buffers, or the gradients that there are, on every rank of the mesh.
absl::StatusOr<ModuleOutcome::Values> ValuesOn(const DeviceMesh& mesh, Module& model,
                                               bool gradients);

inline auto ValueFields(ModuleOutcome& o) {
  return std::tie(o.y, o.gradients, o.weights, o.forward);
}

// Three steps of AdamW on sum(y^2), in f64, with uneven shards allowed. On every rank.
absl::StatusOr<ModuleOutcome> TrainModule(Context& context, const ModuleRun& run,
                                          const MeshAndPlan& place);

// Fails the test where TrainModule does, or where two ranks get unlike values. Requires:
// SuiteHasRanks().
ModuleOutcome TrainModuleOn(const ModuleRun& run, const MeshAndPlan& place);

// Everywhere (where the suite has such ranks) as on one rank where nothing is recomputed.
void ExpectAsOnOneRank(const ModuleRun& run, const std::vector<MeshAndPlan>& places);

// [..., features] -> the same, of RMSNorm between two linear layers, "0" and "2", of one weight.
ModulePtr TwoLinearsOfOneWeight(int64_t features);

}  // namespace dtensor

#endif  // DTENSOR_TESTS_PLANS_TRAIN_MODULE_H_
