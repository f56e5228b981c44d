// The figures of a training step on one rank: what it communicates, holds, and how long it takes.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_FIGURES_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_FIGURES_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Forward is the model and the loss. The update is everything after Backward: gradients that are
// not reduced yet are reduced, gradients are clipped, and the optimizer makes its step.
enum class StepPhase : uint8_t { kForward, kBackward, kUpdate };
inline constexpr std::array<StepPhase, 3> kStepPhases = {StepPhase::kForward, StepPhase::kBackward,
                                                         StepPhase::kUpdate};
absl::string_view ToString(StepPhase phase);  // "forward", "backward", "update"

// What a rank does in one phase.
struct PhaseFigures {
  TrafficTable traffic;  // collectives it takes part in, and bytes it receives from others
  // Predicted times: of kernels; of exchanges; and the part of the latter that the rank waits for.
  // 0 on a rank that really runs.
  double compute_seconds = 0, communication_seconds = 0, exposed_seconds = 0;
  double seconds() const { return compute_seconds + exposed_seconds; }
};
using StepPhases = std::array<PhaseFigures, 3>;
inline PhaseFigures& Of(StepPhases& phases, StepPhase phase) {
  return phases[static_cast<size_t>(phase)];
}
inline const PhaseFigures& Of(const StepPhases& phases, StepPhase phase) {
  return phases[static_cast<size_t>(phase)];
}

// One module's own work, without that of modules in it.
struct ModuleFigures {
  std::string path;      // if folded, "model.layers.0..31.mlp"; "" is the model itself
  bool outside = false;  // work outside of all modules: the loss, the update. Has no path
  int64_t modules = 1;   // how many modules have these figures, each
  StepPhases phases;
  int64_t parameter_bytes = 0;  // of its own parameters, as stored on the rank
  int64_t saved_bytes = 0;      // activations that its operators keep for Backward
};

// Bytes of tensors on one rank.
struct MemoryFigures {
  int64_t parameters = 0;   // as stored between uses; includes buffers
  int64_t gathered = 0;     // gathered parameters that stay from step to step (ZeRO-1 and ZeRO-2)
  int64_t gradients = 0;    // after all are reduced
  int64_t optimizer = 0;    // states and master weights
  int64_t inputs = 0;       // token ids and targets
  int64_t activations = 0;  // saved by forward for Backward
  int64_t peak = 0;         // the most at any time of the step: all of the above and temporaries
  friend bool operator==(const MemoryFigures&, const MemoryFigures&) = default;
};
// All members but the peak, with their names.
std::vector<std::pair<std::string, int64_t>> PartsOf(const MemoryFigures& memory);

struct RankFigures {
  int rank = 0;
  MemoryFigures memory;
  // When and where the peak was reached. The module is a path, or "" for the model itself and for
  // work outside of all modules.
  StepPhase peak_phase = StepPhase::kForward;
  std::string peak_module;
  std::vector<ModuleFigures> modules;  // first what is outside, then in the model's order
  StepPhases phases() const;           // the sum over all modules
};

// Adds calls, messages, bytes and seconds of `more` to `sum`, `times` times.
void Add(const PhaseFigures& more, int64_t times, PhaseFigures& sum);
double SecondsOf(const StepPhases& phases);
// Bytes received in all phases, by the axes along which ranks talk: "dp,tp".
std::map<std::string, int64_t> ReceivedBytes(const StepPhases& phases);

// Whether everything that is counted is equal for the two modules. Paths and times may differ.
bool CountedAlike(const ModuleFigures& a, const ModuleFigures& b);

// Folds equal modules of a list into one: "layers.0.mlp" to "layers.31.mlp" become
// "layers.0..31.mlp", 32 modules. Modules that differ in what is counted stay apart. The times of a
// folded module are the means.
std::vector<ModuleFigures> Fold(const std::vector<ModuleFigures>& modules);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_FIGURES_H_
