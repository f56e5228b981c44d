#include "dtensor/parallel_plans/explain/step_meter.h"

#include <algorithm>
#include <utility>

#include "dtensor/runtime/core/hash_map.h"

namespace dtensor::internal {

StepMeter::StepMeter(Context& context, Module& model) : context_(context), modules_(1) {
  modules_[0].outside = true;
  HashSet<const Parameter*> seen;
  model.VisitModules([&](const std::string& path, Module& module) {
    place_[&module] = modules_.size();
    ModuleFigures& figures = modules_.emplace_back();
    figures.path = path;
    for (const OwnParameter& own : module.own_parameters()) {
      const DistributedTensor& tensor = own.parameter->tensor;
      if (!seen.insert(own.parameter.get()).second || !tensor.defined()) continue;
      figures.parameter_bytes += tensor.local().bytes();
    }
  });
  context_.set_scope_observer(this);
}

StepMeter::~StepMeter() { context_.set_scope_observer(nullptr); }

ModuleFigures& StepMeter::At(const void* scope) {
  const auto it = place_.find(scope);
  return modules_[it == place_.end() ? 0 : it->second];
}

void StepMeter::Enter(const void* scope) {
  Account();
  current_ = static_cast<size_t>(&At(scope) - modules_.data());
}

void StepMeter::Begin(StepPhase phase) {
  if (counts_) {
    Account();
  } else {
    context_.communicator().ResetTraffic();
    context_.device().ResetPeak();
    if (context_.simulated_clock() != nullptr) time_ = context_.simulated_clock()->time();
  }
  counts_ = true;
  phase_ = phase;
}

void StepMeter::End() {
  Account();
  counts_ = false;
}

void StepMeter::Account() {
  if (!counts_) return;
  ModuleFigures& module = modules_[current_];
  if (const TrafficTable& traffic = context_.communicator().traffic(); !traffic.empty()) {
    Add({traffic}, 1, Of(module.phases, phase_));
    context_.communicator().ResetTraffic();
  }
  if (const SimulatedClock* clock = context_.simulated_clock(); clock != nullptr) {
    const SimulatedTime spent = clock->time() - std::exchange(time_, clock->time());
    PhaseFigures& figures = Of(module.phases, phase_);
    figures.compute_seconds += spent.compute_seconds;
    figures.communication_seconds += spent.communication_seconds;
    figures.exposed_seconds += spent.exposed_seconds;
  }
  if (const int64_t peak = context_.device().memory().peak_bytes; peak > peak_) {
    peak_ = peak;
    peak_phase_ = phase_;
    peak_module_ = module.path;
  }
}

std::vector<ModuleFigures> StepMeter::TakeModules() {
  std::vector<ModuleFigures> taken;
  for (ModuleFigures& module : modules_) {
    const bool holds = module.parameter_bytes > 0 || module.saved_bytes > 0;
    const bool works = std::any_of(
        module.phases.begin(), module.phases.end(),
        [](const PhaseFigures& phase) { return !phase.traffic.empty() || phase.seconds() > 0; });
    if (module.outside || holds || works) taken.push_back(std::move(module));
  }
  modules_.clear();
  return taken;
}

}  // namespace dtensor::internal
