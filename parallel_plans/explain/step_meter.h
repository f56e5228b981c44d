// Counts what a rank does while a step runs, by module and phase. For training_step.cc.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_METER_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_METER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/explain/step_figures.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/work_scope.h"

namespace dtensor {
namespace internal {

// Observes `context` for as long as it lives. What is counted while a scope is the current one is
// attributed to it.
class StepMeter : public ScopeObserver {
 public:
  StepMeter(Context& context, Module& model);
  ~StepMeter() override;
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  void Enter(const void* scope) override;
  // From here on, work belongs to this phase. The first call starts the counting and resets the
  // peak.
  void Begin(StepPhase phase);
  void End();  // counts nothing from here on

  // Adds `bytes` to what the work in `scope` saved for Backward.
  void AddSaved(const void* scope, int64_t bytes) { At(scope).saved_bytes += bytes; }

  // Returns all modules that did something or have parameters. Then, where the peak was.
  std::vector<ModuleFigures> TakeModules();
  StepPhase peak_phase() const { return peak_phase_; }
  const std::string& peak_module() const { return peak_module_; }

 private:
  ModuleFigures& At(const void* scope);
  void Account();

  Context& context_;
  std::vector<ModuleFigures> modules_;  // the first is what is outside
  HashMap<const void*, size_t> place_;
  bool counts_ = false;
  StepPhase phase_ = StepPhase::kForward, peak_phase_ = StepPhase::kForward;
  size_t current_ = 0;  // among modules_
  int64_t peak_ = 0;
  SimulatedTime time_;
  std::string peak_module_;
};

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_METER_H_
