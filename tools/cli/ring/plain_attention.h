// Attention and its gradients by the formulas of runtime/kernels/attention.h, wider than f64.
#ifndef DTENSOR_TOOLS_CLI_RING_PLAIN_ATTENTION_H_
#define DTENSOR_TOOLS_CLI_RING_PLAIN_ATTENTION_H_

#include <vector>

#include "dtensor/attention/ring_schedule.h"
#include "dtensor/tools/cli/ring/ring_tensors.h"

namespace dtensor::cli {

// Row-major values, of the shapes of RingOutputs.
using Wide = std::vector<long double>;
struct RingTruth {
  Wide o, lse, dq, dk, dv;
};

// All in long double, on all cores, with scale 1 / sqrt(head_dim). Rows that see nothing: o = 0,
// lse = -inf, gradients 0. Requires: positions that begin at 0.
RingTruth PlainAttention(const RingProblem& problem, const RingInputs& inputs);

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_RING_PLAIN_ATTENTION_H_
