// RingSchedule: who works on which keys and values when, and who sends them on, as an immutable
// value. For attention whose queries, keys and values are all sharded along the sequence.
//
//   ring rank  The ring's ranks: 0..cp-1, row-major over its axes, whatever the mesh's other
//              axes are. Each owns the KV block of its number. All groups of the mesh follow the
//              same schedule.
//   one axis   At hop j ring rank r works on block r - j (mod cp). KV moves r -> r + 1.
//   two axes   (outer of W, inner of w.) KV makes inner rings of w - 1 hops; W - 1 times the block
//              that a ring rank began with goes on to its fellow of the next inner ring, while it
//              still works. At hop t*w + i ring rank (R, a) works on block (R - t, a - i).
//   backward   KV goes round again. The gradient of a block starts at its owner and follows it:
//              each ring rank adds its share and sends on, and the last one sends home: cp hops.
//   skipping   A block that a ring rank may not see at all is never sent to it. Then a rank gets a
//              block from the one before it in the ring if that one has just worked on it, else
//              from the owner; and sends the gradient to the one after it if that one works on
//              it next, else home, where what arrives is added. Hops at which nobody has work are
//              no steps; hop 0 always is one.
//
// In a step, a ring rank runs its kernel while blocks arrive for later steps; then gradients move.
// So a message is a send and a receive of the same step. Proofs and formulas:
// docs/ring-attention.md.
#ifndef DTENSOR_ATTENTION_RING_SCHEDULE_H_
#define DTENSOR_ATTENTION_RING_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/attention_mask.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/index_set.h"

namespace DTENSOR_EXPORT dtensor {

struct RingProblem {
  // Layouts of the sequence dimension alone, in any order, also unlike ones: "[cp:zigzag]".
  Layout q, kv;
  int64_t q_length = 0, kv_length = 0;
  int64_t q_start = 0, kv_start = 0;  // positions of the first query and key
  // Of the ring. Two: the outer and the inner one of a ring of rings. More: one ring, in order.
  AxisList axes;
  // As one rank holds them, after other axes have split them. KV heads are never repeated.
  int64_t batch = 1, heads = 1, kv_heads = 1, head_dim = 1;
  DType dtype = DType::kF32;
  AttentionMask mask;
};

// One end of a message: what travels, and the ring rank at the other end.
struct RingMessage {
  int peer = 0;
  int block = 0;
  int64_t bytes = 0;
  bool crosses = false;  // from one inner ring to another
  friend bool operator==(const RingMessage&, const RingMessage&) = default;
};

// What one ring rank does in one step.
struct RingTurn {
  int source = 0;  // the block that it works on
  BlockCase block_case = BlockCase::kEmpty;
  int64_t work = 0;                          // allowed pairs of a query and a key, of one head
  std::vector<RingMessage> sends, receives;  // KV, in forward and backward alike
  std::vector<RingMessage> gradient_sends, gradient_receives;  // dKV, after the kernel
};

struct RingStep {
  int hop = 0;                  // steps without work are left out, so hops may jump
  std::vector<RingTurn> turns;  // one for each ring rank
};

// What one ring rank sends to another.
struct RingLink {
  int from = 0, to = 0;
  int64_t forward_bytes = 0, backward_bytes = 0;
};

// Bytes that one rank holds at its peak. Scratch memory of kernels is counted where it grows with
// head_dim times the sequence.
struct RingMemory {
  int64_t tensors = 0;     // arguments and results, in the tensors' type
  int64_t carry = 0;       // of each query: log-sum-exp, sum of exponentials or delta, and the sum
                           // of o or dq, if it is wider than the result
  int64_t kv_buffers = 0;  // blocks of other ring ranks, on their way
  // Gradients on their way, and the own block's, if its sum is wider than the result.
  int64_t gradient_buffers = 0;
  int64_t total() const { return tensors + carry + kv_buffers + gradient_buffers; }
};

class RingSchedule {
 public:
  // Of its ranks, each pair of which has a turn: 2 GB of them.
  static constexpr int kMostRanks = 4096;

  // Errors: kInvalidArgument, naming the remedy, for more than kMostRanks, heads that kv_heads does
  // not divide, sizes that are negative or cannot be counted, a type that is no float, no axes, or
  // axes that overlap, layouts that the ring's axes do not all split, or others do, a mask that
  // does not fit.
  static absl::StatusOr<RingSchedule> Create(const RingProblem& problem);

  const RingProblem& problem() const { return problem_; }
  int ring_size() const { return static_cast<int>(q_.size()); }
  // Of the outer axis; 1 where the ring is a single one (also when one of two axes has size 1).
  int outer_size() const { return outer_size_; }
  absl::Span<const RingStep> steps() const { return steps_; }

  // What a ring rank holds, and the bytes of a block and of its gradient (in the accumulator's
  // type).
  const IndexSet& q_positions(int ring_rank) const { return q_[ring_rank]; }
  const IndexSet& kv_positions(int ring_rank) const { return kv_[ring_rank]; }
  int64_t BlockBytes(int block) const;
  int64_t GradientBytes(int block) const;

  // Sent by a ring rank. Backward: KV again, and gradients.
  int64_t ForwardBytes(int ring_rank) const;
  int64_t BackwardBytes(int ring_rank) const;
  // The same over each link that is used, ascending.
  std::vector<RingLink> Links() const;
  // KV blocks, and gradients, that go from one inner ring to another, of all ring ranks.
  int CrossingBlocks() const;
  int CrossingGradients() const;

  // Total work / (ring ranks * the sum over steps of the largest): 1 if no ring rank ever waits, or
  // there is nothing to do.
  double Balance() const;

  // How many blocks a ring rank works on, and whether it sums gradients, of several blocks or from
  // several ring ranks: those that have one term are rounded at once.
  int BlocksOf(int ring_rank) const;
  bool SumsGradients(int ring_rank) const;

  RingMemory ForwardMemory(int ring_rank) const;
  RingMemory BackwardMemory(int ring_rank) const;
  int64_t PeakBytes() const;  // of the ring rank that has most

  // That the schedule itself takes, on the heap.
  int64_t OwnBytes() const;

  // Proves the schedule from its messages: every ring rank works once on each block of which it may
  // see anything, when it has it; what is sent is received, and the sender has it; the gradient of
  // a block holds each ring rank's share once, at its owner; blocks on their way fit their buffers.
  // O(ring_size^3): for tests.
  absl::Status Verify() const;

  // The mesh, the attention and the sequence: three lines.
  std::string Heading() const;
  // The heading, a line for each step and ring rank, then the bytes of each link, the balance, and
  // the memory.
  std::string ToString() const;

 private:
  friend class RingPlanner;
  RingSchedule() = default;
  int KvBuffers(int ring_rank) const;
  int64_t WideRows(int ring_rank, bool carried, int64_t blocks) const;

  RingProblem problem_;
  int outer_size_ = 1;
  std::vector<IndexSet> q_, kv_;  // by ring rank
  std::vector<RingStep> steps_;
};

}  // namespace dtensor

#endif  // DTENSOR_ATTENTION_RING_SCHEDULE_H_
