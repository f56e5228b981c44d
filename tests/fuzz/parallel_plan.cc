// A parallel plan's text, the name of one, and a pattern of context parallelism.
#include "dtensor/parallel_plans/parallel_plan.h"

#include <string>

#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  static const DeviceMesh& mesh = *new DeviceMesh(*DeviceMesh::Parse("a=2,b=2,cp=2,tp=2;dp=a*b"));
  IsRead(ContextPattern::Parse(input));
  IsRead(PresetPlan(input, mesh));
  const absl::StatusOr<ParallelPlan> plan = ParallelPlan::Parse(input);
  if (!IsRead(plan)) return;
  const std::string text = plan->ToString();
  RequireSame(*plan, ParallelPlan::Parse(text), text);
}

}  // namespace dtensor::fuzz
