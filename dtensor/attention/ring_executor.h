// Carries out ring schedules on one rank's local tensors. It makes no decisions: these are all in
// the schedule. In each step, blocks of keys and values start to move, the kernel runs, and the
// blocks arrive; then gradients move.
//
// The caller allocates the results. Sums are accumulated in them if their type allows it. All other
// memory that is held meanwhile is counted in RingSchedule::ForwardMemory and BackwardMemory.
#ifndef DTENSOR_ATTENTION_RING_EXECUTOR_H_
#define DTENSOR_ATTENTION_RING_EXECUTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/attention/attention_rows.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/attention.h"

namespace dtensor {

// A schedule, as seen from one rank.
class RankRing {
 public:
  // Requires: `rank` is on the mesh of the schedule.
  RankRing(RingSchedule schedule, int rank);
  const RingSchedule& schedule() const { return schedule_; }
  int ring_rank() const { return ring_rank_; }
  const std::vector<int>& ranks() const { return ranks_; }  // of the world, by ring rank
  const std::vector<int>& group() const { return group_; }  // the same, ascending
  const std::string& axes() const { return axes_; }         // "cp", "node,cp"
  uint64_t digest() const { return digest_; }

 private:
  RingSchedule schedule_;
  int ring_rank_ = 0;
  std::vector<int> ranks_, group_;
  std::string axes_;
  uint64_t digest_ = 0;
};

// What is not part of the schedule. It must be equal on all ranks.
struct RingOptions {
  double scale = 1;
  kernels::AttentionDropout dropout;  // drops the same weights for any number of ranks
  uint64_t lineage = 0;               // of the call (lineage.h), for a caller that keeps it
  AttentionRows rows;                 // of the batch entries that the ring's ranks share
};

// Computes this rank's part of o = softmax(scale * q k^T, masked) v, and of lse, the log-sum-exp of
// the scores: see kernels/attention.h. Collective over the ring's ranks.
//
// q, o: [batch, its positions, heads, head_dim]; k, v: [batch, its positions, kv_heads, head_dim],
// of the problem's type, with positions ascending, and any strides except that the last is 1. lse:
// [batch, heads, its positions], in the accumulator's type, any strides. Results share no memory
// with arguments or each other. `op` is what the user called, for error messages. Errors: before
// anything moves, kInvalidArgument for tensors that do not match the problem, and a dropout that
// does not match its batch entries and heads; the world's failure, for example if ranks' options
// differ; kResourceExhausted, which fails the world.
absl::Status RunRing(const RankRing& ring, const RingOptions& options, const Tensor& q,
                     const Tensor& k, const Tensor& v, Communicator& communicator,
                     absl::string_view op, const Tensor& o, const Tensor& lse);

// Computes the gradients of q, k and v, which have their shapes, from the final o and lse and the
// gradients of o and, if it is defined, of lse. Every run makes the same sums in the same order.
// Errors: as RunRing.
absl::Status RunRingBackward(const RankRing& ring, const RingOptions& options, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                             const Tensor& dout, Communicator& communicator, absl::string_view op,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dlse = Tensor());

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_RING_EXECUTOR_H_
