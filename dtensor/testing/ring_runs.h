// For tests: attention over the ranks of a ring, from and to whole tensors on the host.
#ifndef DTENSOR_TESTING_RING_RUNS_H_
#define DTENSOR_TESTING_RING_RUNS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/reference_attention.h"

namespace dtensor {

// Normal, and exact in bf16: so in f16, too, but for numbers next to 0.
AttentionInputs RandomInputs(const RingProblem& problem);

// The rows at `positions` of [outer, length, width].
template <typename T>
std::vector<T> RowsAt(const std::vector<T>& whole, int64_t outer, int64_t length, int64_t width,
                      const IndexSet& positions) {
  std::vector<T> rows;
  for (int64_t b = 0; b < outer; ++b) {
    for (int64_t i = 0; i < positions.size(); ++i) {
      const T* row = &whole[(b * length + positions.At(i)) * width];
      rows.insert(rows.end(), row, row + width);
    }
  }
  return rows;
}

struct RingArguments {
  Tensor q, k, v, dout;
};
// A ring rank's rows of the inputs, in the problem's type.
absl::StatusOr<RingArguments> ArgumentsOf(const RankRing& ring, const AttentionInputs& inputs,
                                          Device& device);

struct RingResults {
  Tensor o, lse, dq, dk, dv;
};
// Forward and backward on one rank. Results begin as NaN: all of them must be written.
absl::StatusOr<RingResults> RunBoth(const RankRing& ring, const RingOptions& options,
                                    const RingArguments& in, Communicator& communicator);

// Forward and backward on the ranks of the suite. Requires: the ring has all ranks of its mesh.
// Errors: kUnimplemented where the suite has no such ranks (suite_ranks.h).
absl::StatusOr<AttentionDoubles> RunRanksOfRing(const RingSchedule& schedule,
                                                const RingOptions& options,
                                                const AttentionInputs& inputs,
                                                const RunOptions& run_options = {});

}  // namespace dtensor

#endif  // DTENSOR_TESTING_RING_RUNS_H_
