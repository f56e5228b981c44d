// What a rank counts while a step runs, by module and phase. For training_step.cc.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_METER_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_STEP_METER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/explain/step_figures.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/work_scope.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// Observes `context` while it lives. What was counted between two changes of the scope is the work
// of the first one.
class StepMeter : public ScopeObserver {
 public:
  StepMeter(Context& context, Module& model);
  ~StepMeter() override;
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  void Enter(const void* scope) override;
  // From here on all is that phase's. Begins to count with the first, and the peak anew.
  void Begin(StepPhase phase);
  void End();  // counts nothing from here on

  // `bytes` that the work in `scope` saved.
  void AddSaved(const void* scope, int64_t bytes) { At(scope).saved_bytes += bytes; }

  // All modules that did something or have parameters; and where the peak was.
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
