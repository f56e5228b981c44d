// LrSchedule: the learning rate as a pure function of the step, with a linear warm-up. The values
// are those of Hugging Face's get_{constant,linear,cosine}_schedule_with_warmup. With w warm-up
// steps, n steps in total, and step s counted from 0:
//
//   s < w      lr s / max(1, w)
//   constant   lr
//   linear     lr max(0, (n - s) / max(1, n - w))
//   cosine     lr max(0, (1 + cos(2 pi cycles q)) / 2), q = (s - w) / max(1, n - w)
//
// The first step of a warm-up has rate 0. A cosine continues after step n, so half a cycle rises
// again.
#ifndef DTENSOR_NN_OPTIM_LR_SCHEDULE_H_
#define DTENSOR_NN_OPTIM_LR_SCHEDULE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class LrSchedule {
 public:
  static LrSchedule Constant(double lr, int64_t warmup_steps = 0);
  static LrSchedule Linear(double lr, int64_t warmup_steps, int64_t total_steps);
  static LrSchedule Cosine(double lr, int64_t warmup_steps, int64_t total_steps,
                           double cycles = 0.5);

  // The rate of `step`, from 0.
  double At(int64_t step) const;
  // "cosine(0.001, 10, 100, 0.5)": the arguments of the function that made it. Parse(s.ToString())
  // == s.
  std::string ToString() const;
  // Errors: kInvalidArgument for text of another form, rates that are not finite, and more than 1e9
  // cycles.
  static absl::StatusOr<LrSchedule> Parse(absl::string_view text);
  friend bool operator==(const LrSchedule&, const LrSchedule&) = default;

 private:
  enum class Kind : uint8_t { kConstant, kLinear, kCosine };
  LrSchedule(Kind kind, double lr, int64_t warmup_steps, int64_t total_steps, double cycles)
      : kind_(kind), lr_(lr), warmup_(warmup_steps), total_(total_steps), cycles_(cycles) {}

  Kind kind_;
  double lr_;
  int64_t warmup_, total_;
  double cycles_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_LR_SCHEDULE_H_
