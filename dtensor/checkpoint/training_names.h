// Names in a checkpoint of a training run.
#ifndef DTENSOR_CHECKPOINT_TRAINING_NAMES_H_
#define DTENSOR_CHECKPOINT_TRAINING_NAMES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

// Names of texts in the index.
inline constexpr absl::string_view kPositionEntry = "training.position";
inline constexpr absl::string_view kSeedEntry = "training.random_seed";
inline constexpr absl::string_view kDrawnEntry = "training.random_drawn";
inline constexpr absl::string_view kScheduleEntry = "training.schedule";
inline constexpr absl::string_view kPlanEntry = "training.plan";
inline constexpr absl::string_view kLossScaleEntry = "training.loss_scale";
inline constexpr absl::string_view kGoodStepsEntry = "training.good_steps";
inline constexpr absl::string_view kUserEntries = "user.";  // the prefix of the caller's own names

// Names of optimizer states that are treated specially here.
inline constexpr absl::string_view kStepState = "step";
inline constexpr absl::string_view kMasterState = "master";

std::string OptimizerName(absl::string_view state, absl::string_view parameter);

// A parameter of a model. For each of its paths, the names of its parts.
struct NamedParameter {
  Parameter* parameter = nullptr;
  std::vector<std::string> paths;               // the first one is the model's own
  std::vector<std::vector<std::string>> names;  // per path: of the parts, or of the parameter
};
std::vector<NamedParameter> NamedParameters(Module& model);

// Whether the model's parameters, those that have memory, belong to this Context. Errors:
// kInvalidArgument, naming one that does not.
absl::Status CheckAreOfContext(const Context& context, Module& model);

// The set of parameters that an optimizer steps.
class OptimizedParameters {
 public:
  explicit OptimizedParameters(const Optimizer* optimizer);
  bool Contains(const Parameter& parameter) const;
  // Whether they all are the model's. Errors: kInvalidArgument, naming one that is not.
  absl::Status CheckAreOf(Module& model) const;

 private:
  const Optimizer* const optimizer_;  // may be null
  HashSet<const void*> tensors_;
};

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_TRAINING_NAMES_H_
