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

// Forward is the model and the loss. The update is what comes after Backward: gradients that are
// not reduced yet are, they are clipped, and the optimizer makes its step.
enum class StepPhase : uint8_t { kForward, kBackward, kUpdate };
inline constexpr std::array<StepPhase, 3> kStepPhases = {StepPhase::kForward, StepPhase::kBackward,
                                                         StepPhase::kUpdate};
absl::string_view ToString(StepPhase phase);  // "forward", "backward", "update"

// What a rank does in one phase.
struct PhaseFigures {
  TrafficTable traffic;  // collectives it takes part in, and bytes it receives from others
  // Predicted: in kernels; of exchanges, and of these what the rank waits for. 0 on a rank that
  // runs.
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
  std::string path;      // of folded ones "model.layers.0..31.mlp"; "" is the model itself
  bool outside = false;  // what no module does: the loss, the update. Without a path
  int64_t modules = 1;   // that have these figures each
  StepPhases phases;
  int64_t parameter_bytes = 0;  // of its own parameters, as they rest on the rank
  int64_t saved_bytes = 0;      // activations that its operators keep for Backward
};

// Bytes of tensors on one rank.
struct MemoryFigures {
  int64_t parameters = 0;   // as they rest, buffers among them
  int64_t gathered = 0;     // whole parameters that stay from step to step (ZeRO-1 and ZeRO-2)
  int64_t gradients = 0;    // when all are reduced
  int64_t optimizer = 0;    // states and master weights
  int64_t inputs = 0;       // token ids and targets
  int64_t activations = 0;  // what forward leaves for Backward
  int64_t peak = 0;         // of all of it and what is temporary, at any time of the step
  friend bool operator==(const MemoryFigures&, const MemoryFigures&) = default;
};
// Those above with their names, but the peak.
std::vector<std::pair<std::string, int64_t>> PartsOf(const MemoryFigures& memory);

struct RankFigures {
  int rank = 0;
  MemoryFigures memory;
  // Where the peak was reached: a module's path, "" for the model itself and for what is outside.
  StepPhase peak_phase = StepPhase::kForward;
  std::string peak_module;
  std::vector<ModuleFigures> modules;  // in the model's order, first what is outside
  StepPhases phases() const;           // of all modules
};

// Adds calls, messages, bytes and seconds, `times` times.
void Add(const PhaseFigures& more, int64_t times, PhaseFigures& sum);
double SecondsOf(const StepPhases& phases);
// Bytes received in all phases, by the axes along which ranks talk: "dp,tp".
std::map<std::string, int64_t> ReceivedBytes(const StepPhases& phases);

// Whether two modules have the same figures in all that is counted. Paths and times may differ.
bool CountedAlike(const ModuleFigures& a, const ModuleFigures& b);

// Makes one of equal modules in the places of a list: "layers.0.mlp" to "layers.31.mlp" become
// "layers.0..31.mlp", 32 modules. Those that differ in what is counted stay apart; the times of one
// are the mean of theirs.
std::vector<ModuleFigures> Fold(const std::vector<ModuleFigures>& modules);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_FIGURES_H_
