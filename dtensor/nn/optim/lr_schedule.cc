#include "dtensor/nn/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/core/number_text.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr double kMostCycles = 1e9;  // up to this the cosine is a number at every step

}  // namespace

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
  const auto ratio = [](double a, double b) { return a / std::max(1.0, b); };
  // Differences of step numbers are exact up to 2^53, and never overflow.
  const auto now = static_cast<double>(step), warmup = static_cast<double>(warmup_),
             total = static_cast<double>(total_);
  if (step < warmup_) return lr_ * ratio(now, warmup);
  switch (kind_) {
    case Kind::kConstant:
      return lr_;
    case Kind::kLinear:
      return lr_ * std::max(0.0, ratio(total - now, total - warmup));
    default: {
      const double progress = ratio(now - warmup, total - warmup);
      return lr_ * std::max(0.0, 0.5 * (1 + std::cos(2 * std::numbers::pi * cycles_ * progress)));
    }
  }
}

std::string LrSchedule::ToString() const {
  const std::string lr = ExactText(lr_);
  switch (kind_) {
    case Kind::kConstant:
      return absl::StrCat("constant(", lr, ", ", warmup_, ")");
    case Kind::kLinear:
      return absl::StrCat("linear(", lr, ", ", warmup_, ", ", total_, ")");
    default:
      return absl::StrCat("cosine(", lr, ", ", warmup_, ", ", total_, ", ", ExactText(cycles_),
                          ")");
  }
}

absl::StatusOr<LrSchedule> LrSchedule::Parse(absl::string_view text) {
  const absl::Status no_schedule =
      InvalidArgument({"'", text, "' is no learning rate's schedule; write constant(lr, warmup), ",
                       "linear(lr, warmup, total) or cosine(lr, warmup, total, cycles)"});
  absl::string_view rest = text;
  const absl::string_view kind = rest.substr(0, rest.find('('));
  if (!absl::ConsumePrefix(&rest, kind) || !absl::ConsumePrefix(&rest, "(") ||
      !absl::ConsumeSuffix(&rest, ")")) {
    return no_schedule;
  }
  const std::vector<absl::string_view> arguments = absl::StrSplit(rest, ',');
  const size_t wanted = kind == "constant" ? 2 : kind == "linear" ? 3 : kind == "cosine" ? 4 : 0;
  double lr = 0, cycles = 0;
  int64_t warmup = 0, total = 0;
  const bool read = arguments.size() == wanted && absl::SimpleAtod(arguments[0], &lr) &&
                    absl::SimpleAtoi(arguments[1], &warmup) &&
                    (wanted < 3 || absl::SimpleAtoi(arguments[2], &total)) &&
                    (wanted < 4 || absl::SimpleAtod(arguments[3], &cycles)) && std::isfinite(lr) &&
                    std::abs(cycles) <= kMostCycles;
  if (!read) return no_schedule;
  if (wanted == 2) return Constant(lr, warmup);
  return wanted == 3 ? Linear(lr, warmup, total) : Cosine(lr, warmup, total, cycles);
}

}  // namespace dtensor
