// Carries out ring schedules on one rank's local tensors: dumb on purpose, all decisions are in the
// schedule. In each step blocks of keys and values begin to move, the kernel runs, the blocks
// arrive; then gradients move.
#ifndef DTENSOR_RING_EXECUTOR_H_
#define DTENSOR_RING_EXECUTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// A schedule as one rank carries it out.
class RankRing {
 public:
  // Requires: `rank` is on the mesh of the schedule.
  RankRing(RingSchedule schedule, int rank);
  const RingSchedule& schedule() const { return schedule_; }
  int place() const { return place_; }
  const std::vector<int>& ranks() const { return ranks_; }  // of the world, by place
  const std::vector<int>& group() const { return group_; }  // the same, ascending
  const std::string& axes() const { return axes_; }         // "cp", "node,cp"
  uint64_t digest() const { return digest_; }

 private:
  RingSchedule schedule_;
  int place_ = 0;
  std::vector<int> ranks_, group_;
  std::string axes_;
  uint64_t digest_ = 0;
};

// This rank's part of softmax(scale * q k^T, masked) v. lse is wide: see kernels/attention.h.
struct RingAttention {
  Tensor o, lse;
};
struct RingGradients {
  Tensor dq, dk, dv;
};

// Collective over the ring's ranks. q: [batch, its positions, heads, head_dim]; k, v: [batch, its
// positions, kv_heads, head_dim], of the problem's type, in ascending order of positions; any
// strides with the last one 1, and k and v row-major, since peers read them. `op` is what the user
// called, for errors. Errors: kInvalidArgument for tensors that are not what the problem says
// (before anything moves); the world's failure; kResourceExhausted, which fails the world.
absl::StatusOr<RingAttention> RunRing(const RankRing& ring, double scale, const Tensor& q,
                                      const Tensor& k, const Tensor& v, Communicator& communicator,
                                      absl::string_view op);

// With the final o and lse, and the gradient of o. The same sums in the same order on every run.
absl::StatusOr<RingGradients> RunRingBackward(const RankRing& ring, double scale, const Tensor& q,
                                              const Tensor& k, const Tensor& v,
                                              const RingAttention& result, const Tensor& dout,
                                              Communicator& communicator, absl::string_view op);

}  // namespace dtensor

#endif  // DTENSOR_RING_EXECUTOR_H_
