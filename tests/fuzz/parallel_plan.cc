// A parallel plan's text, and a pattern of context parallelism.
#include "dtensor/parallel_plans/parallel_plan.h"

#include <string>

#include "dtensor/parallel_plans/context_pattern.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  IsRead(ContextPattern::Parse(input));
  const absl::StatusOr<ParallelPlan> plan = ParallelPlan::Parse(input);
  if (!IsRead(plan)) return;
  const std::string text = plan->ToString();
  RequireSame(*plan, ParallelPlan::Parse(text), text);
}

}  // namespace dtensor::fuzz
