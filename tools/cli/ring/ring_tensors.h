// The inputs and results of ring attention, unsharded, on one device: random, or from and to files.
#ifndef DTENSOR_TOOLS_CLI_RING_RING_TENSORS_H_
#define DTENSOR_TOOLS_CLI_RING_RING_TENSORS_H_

#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/tools/cli/ring/ring_request.h"

namespace dtensor::cli {

// Row-major, of the problem's type. q, dout: [batch, heads, seq, head_dim]; k, v: [batch, kv_heads,
// seq, head_dim].
struct RingInputs {
  Tensor q, k, v, dout;
};

// o and dq are like q, dk and dv like k; lse: [batch, heads, seq], f32 (f64 for f64).
struct RingOutputs {
  Tensor o, lse, dq, dk, dv;
  // In the order in which files name them.
  std::array<std::pair<const char*, Tensor>, 5> Named() const;
};

// Without values. Errors: kResourceExhausted.
absl::StatusOr<RingOutputs> EmptyOutputs(Device& device, const RingProblem& problem);

// From a standard normal distribution, rounded to the type; the same on every call.
absl::StatusOr<RingInputs> RandomInputs(Device& device, const RingProblem& problem);

// Completes the flags by the file: the sizes and, if none is given, the type of its tensors `q`,
// `k`, `v` and `do`. Errors: kNotFound for a missing tensor; kInvalidArgument for tensors that are
// not of rank 4, are not floats, or do not fit each other, and for a flag that contradicts the
// file.
absl::StatusOr<RingFlags> WithSizesOf(const SafetensorsReader& file, const RingFlags& flags);

// Converts to the problem's type, rounding once. Requires: a problem with the file's sizes. Errors:
// kInvalidArgument for a value that is, or becomes, infinite or NaN; those of Read.
absl::StatusOr<RingInputs> ReadInputs(Device& device, const SafetensorsReader& file,
                                      const RingProblem& problem);

// Errors: of WriteSafetensors.
absl::Status WriteOutputs(const std::string& path, const RingOutputs& outputs);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_RING_TENSORS_H_
