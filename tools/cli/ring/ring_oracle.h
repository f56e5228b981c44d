// What attention on a ring must give, and how far from it something is.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_ORACLE_H_
#define DTENSOR_TOOLS_CLI_RING_RING_ORACLE_H_

#include <array>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/tools/cli/ring/plain_attention.h"
#include "dtensor/tools/cli/ring/ring_tensors.h"

namespace dtensor::cli {

// 1 / sqrt(head_dim).
double RingScale(const RingProblem& problem);

// The library's kernels on all positions in one step, in `dtype`. Errors: kResourceExhausted.
absl::StatusOr<RingOutputs> RunOnOneRank(Device& device, const RingProblem& problem,
                                         const RingInputs& inputs, DType dtype);

// PlainAttention for f64, for which f64 is not wide enough; else RunOnOneRank in f64.
absl::StatusOr<RingTruth> Oracle(Device& device, const RingProblem& problem,
                                 const RingInputs& inputs);

// sqrt(sum (x - y)^2 / sum y^2), x being `got` and y `want`, over the elements where y is finite.
// Infinite if an infinite y is not met by the same x, and for a NaN. Where y cancels to less than
// 1e-9 of its terms' size (gradients of a query that sees one key), it is nothing but rounding: the
// error is relative to that size. Requires: as many elements.
double RelativeError(const Tensor& got, absl::Span<const long double> want, long double term_size);

// One result's error, and the most it may be.
struct RingError {
  std::string name;
  double error = 0, limit = 0;
  std::optional<double> at_one;  // what one rank has: of bf16 and f16
  bool ok() const { return error <= limit; }
  double ratio() const;  // error / at_one; 1 if both are 0. Requires: at_one
};

// Of o, lse, dq, dk, dv. Limits: 1e-13 for f64, 3e-6 for f32; for bf16 and f16 1.4 times the error
// that the kernels have on one rank, or 2^-23 where that is more: sums, and lse, are f32. Errors:
// of Oracle.
absl::StatusOr<std::array<RingError, 5>> Compare(Device& device, const RingProblem& problem,
                                                 const RingInputs& inputs,
                                                 const RingOutputs& outputs);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_ORACLE_H_
