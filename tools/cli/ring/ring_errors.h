// The errors of ring attention's results, and their limits.
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

// Runs the library's kernels on all positions in one step, in `dtype`, one key head after the
// other; each is reported as progress. Errors: kResourceExhausted.
absl::StatusOr<RingOutputs> RunOnOneRank(Device& device, const RingProblem& problem,
                                         const RingInputs& inputs, DType dtype,
                                         const TellFraction& tell = {});

// One result's error, and the most it may be.
struct RingError {
  std::string name;
  double error = 0, limit = 0;
  std::optional<double> at_one;  // the error on one rank: for bf16 and f16
  bool ok() const { return error <= limit; }
  double ratio() const;  // error / at_one; 1 if both are 0. Requires: at_one
};

// The errors of o, lse, dq, dk, dv: RelativeRms. The expected values are from ReferenceAttention
// for f64. For the other types, for which f64 is wide enough, they are from RunOnOneRank in f64,
// which is much faster. Limits: 1e-13 for f64, 3e-6 for f32; for bf16 and f16 1.4 times the error
// that the kernels have on one rank, or 2^-23 if that is more, since sums, and lse, are f32.
// Errors: kResourceExhausted.
absl::StatusOr<std::array<RingError, 5>> Compare(Device& device, const RingProblem& problem,
                                                 const RingInputs& inputs,
                                                 const RingOutputs& outputs,
                                                 const TellFraction& tell = {});

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_ERRORS_H_
