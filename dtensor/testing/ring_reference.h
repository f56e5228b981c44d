// For tests: attention over the ranks of a ring, from and to whole tensors on the host, and an
// oracle for it.
#ifndef DTENSOR_TESTING_RING_REFERENCE_H_
#define DTENSOR_TESTING_RING_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

using Doubles = std::vector<double>;

// Row-major; q, dout: [batch, q_length, heads, head_dim]; k, v: [batch, kv_length, kv_heads,
// head_dim].
struct WholeInputs {
  Doubles q, k, v, dout;
};
// lse: [batch, heads, q_length]; the others as above.
struct WholeResults {
  Doubles o, lse, dq, dk, dv;
  friend bool operator==(const WholeResults&, const WholeResults&) = default;
};

// Normal, and exact in bf16: so in f16, too, but for numbers next to 0.
WholeInputs RandomInputs(const RingProblem& problem);

// The formulas of kernels/attention.h one element at a time, in long double.
WholeResults NaiveAttention(const RingProblem& problem, double scale, const WholeInputs& inputs);

// The rows at `positions` of [outer, length, width].
Doubles RowsAt(const Doubles& whole, int64_t outer, int64_t length, int64_t width,
               const IndexSet& positions);

// A tensor of `dtype`, and its values.
absl::StatusOr<Tensor> FromDoubles(Device& device, DType dtype, const Doubles& values,
                                   const Dims& shape);
absl::StatusOr<Doubles> ToDoubles(const Tensor& tensor);

struct RingResults {
  Tensor o, lse, dq, dk, dv;
};
// Forward and backward on one rank. Results begin as NaN: all of them must be written.
absl::StatusOr<RingResults> RunBoth(const RankRing& ring, const RingOptions& options,
                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& dout, Communicator& communicator);

// Forward and backward on ranks that are threads. Requires: the ring has all ranks of its mesh.
absl::StatusOr<WholeResults> RunRanksOfRing(const RingSchedule& schedule,
                                            const RingOptions& options, const WholeInputs& inputs,
                                            const RunOptions& run_options = {});

// sqrt(sum (x - y)^2 / sum y^2) over the elements where y is finite; infinite if x is not finite
// there, or differs elsewhere.
double RelativeRms(const Doubles& x, const Doubles& y);

}  // namespace dtensor

#endif  // DTENSOR_TESTING_RING_REFERENCE_H_
