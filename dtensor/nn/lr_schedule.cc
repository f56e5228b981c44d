#include "dtensor/nn/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dtensor {

LrSchedule LrSchedule::Constant(double lr, int64_t warmup_steps) {
  return {Kind::kConstant, lr, warmup_steps, 0, 0};
}

LrSchedule LrSchedule::Linear(double lr, int64_t warmup_steps, int64_t total_steps) {
  return {Kind::kLinear, lr, warmup_steps, total_steps, 0};
}

LrSchedule LrSchedule::Cosine(double lr, int64_t warmup_steps, int64_t total_steps, double cycles) {
  return {Kind::kCosine, lr, warmup_steps, total_steps, cycles};
}

double LrSchedule::At(int64_t step) const {
  const auto ratio = [](int64_t a, int64_t b) {
    return static_cast<double>(a) / static_cast<double>(std::max<int64_t>(1, b));
  };
  if (step < warmup_) return lr_ * ratio(step, warmup_);
  switch (kind_) {
    case Kind::kConstant:
      return lr_;
    case Kind::kLinear:
      return lr_ * std::max(0.0, ratio(total_ - step, total_ - warmup_));
    default: {
      const double progress = ratio(step - warmup_, total_ - warmup_);
      return lr_ * std::max(0.0, 0.5 * (1 + std::cos(2 * std::numbers::pi * cycles_ * progress)));
    }
  }
}

}  // namespace dtensor
