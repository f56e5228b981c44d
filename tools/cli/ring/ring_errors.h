// How far results of attention on a ring are from right ones, and how far they may be.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_ERRORS_H_
#define DTENSOR_TOOLS_CLI_RING_RING_ERRORS_H_

#include <array>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/tools/cli/ring/ring_progress.h"
#include "dtensor/tools/cli/ring/ring_tensors.h"

namespace dtensor::cli {

// 1 / sqrt(head_dim).
double RingScale(const RingProblem& problem);

// The library's kernels on all positions in one step, in `dtype`; one key head after the other,
// each of which is told. Errors: kResourceExhausted.
absl::StatusOr<RingOutputs> RunOnOneRank(Device& device, const RingProblem& problem,
                                         const RingInputs& inputs, DType dtype,
                                         const TellFraction& tell = {});

// One result's error, and the most it may be.
struct RingError {
  std::string name;
  double error = 0, limit = 0;
  std::optional<double> at_one;  // what one rank has: of bf16 and f16
  bool ok() const { return error <= limit; }
  double ratio() const;  // error / at_one; 1 if both are 0. Requires: at_one
};

// Of o, lse, dq, dk, dv: RelativeRms. What is right is ReferenceAttention for f64, and for the
// others, for which f64 is wide enough, RunOnOneRank in f64, which is much faster. Limits: 1e-13
// for f64, 3e-6 for f32; for bf16 and f16 1.4 times the error that the kernels have on one rank, or
// 2^-23 where that is more: sums, and lse, are f32. Errors: kResourceExhausted.
absl::StatusOr<std::array<RingError, 5>> Compare(Device& device, const RingProblem& problem,
                                                 const RingInputs& inputs,
                                                 const RingOutputs& outputs,
                                                 const TellFraction& tell = {});

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_ERRORS_H_
