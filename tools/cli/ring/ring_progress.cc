#include "dtensor/tools/cli/ring/ring_progress.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor::cli {
namespace {

// Time for a pair relative to f32 kernels, measured on one core with head_dim 64.
constexpr double kNarrow = 1, kWide = 2, kReference = 200;

int64_t CoresFor(int64_t parts, int cores) { return std::clamp<int64_t>(parts, 1, cores); }

// The time to compute what the results are compared with.
double ComparisonTime(const RingProblem& problem, int cores) {
  const int64_t heads = problem.batch * problem.kv_heads;
  if (problem.dtype == DType::kF64) {
    return kReference / static_cast<double>(CoresFor(heads, cores));
  }
  return SizeOf(problem.dtype) == 2 ? kWide + kNarrow : kWide;
}

}  // namespace

double RingShare(const RingProblem& problem, int cores) {
  const double kernels = problem.dtype == DType::kF64 ? kWide : kNarrow;
  const double ring =
      kernels / static_cast<double>(CoresFor(problem.q.mesh().size(), std::max(cores, 1)));
  return ring / (ring + ComparisonTime(problem, std::max(cores, 1)));
}

namespace {

// The number of steps that move keys and values, forward and backward, plus those that move
// gradients.
int64_t Exchanges(const RingSchedule& schedule) {
  int64_t exchanges = 0;
  for (const RingStep& step : schedule.steps()) {
    const auto any = [&](std::vector<RingMessage> RingTurn::*sends) {
      return std::ranges::any_of(step.turns,
                                 [&](const auto& turn) { return !(turn.*sends).empty(); });
    };
    exchanges += 2 * any(&RingTurn::sends) + any(&RingTurn::gradient_sends);
  }
  return exchanges;
}

}  // namespace

RingStepCounter::RingStepCounter(Communicator& communicator, const RingSchedule& schedule,
                                 TellFraction tell)
    : communicator_(communicator),
      tell_(std::move(tell)),
      expected_(std::max<int64_t>(1, Exchanges(schedule))) {
  communicator_.set_observer(this);
}

RingStepCounter::~RingStepCounter() { communicator_.set_observer(nullptr); }

void RingStepCounter::Finished(const Collective&) {
  finished_ = std::min(finished_ + 1, expected_);
  tell_(static_cast<double>(finished_) / static_cast<double>(expected_));
}

}  // namespace dtensor::cli
