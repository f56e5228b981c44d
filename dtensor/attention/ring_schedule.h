// RingSchedule: which rank works on which keys and values when, and which rank passes them on to
// which; an immutable value. For attention whose queries, keys and values are all sharded along the
// sequence.
//
//   ring rank  The ring's ranks are numbered 0..cp-1, row-major over the ring's axes. Each owns the
//              KV block of its number. For each coordinate on the mesh's other axes there is such a
//              group of ranks; all groups follow the same schedule.
//   one axis   At hop j, ring rank r works on block r - j (mod cp). KV moves r -> r + 1.
//   two axes   (outer of W, inner of w.) KV goes round inner rings, of w - 1 hops each. W - 1
//              times, the block that a ring rank began with also moves on to its counterpart in the
//              next inner ring, while the inner ring still works. At hop t*w + i, ring rank (R, a)
//              works on block (R - t, a - i).
//   backward   KV goes round again. The gradient of a block starts at the block's owner and follows
//              the block: each ring rank adds its share and passes it on, and the last one sends it
//              home: cp hops.
//   skipping   A block of which a ring rank may see nothing is never sent to it. Then a rank gets a
//              block from the one before it in the ring if that one has just worked on it, else
//              from the owner. It sends the gradient to the one after it if that one works on the
//              block next, else home, where incoming gradients are added. Hops in which no rank has
//              work are no steps; hop 0 always is one.
//
// In a step, a ring rank runs its kernel while blocks for later steps arrive; then gradients move.
// So a message is sent and received in the same step. Proofs and formulas: docs/ring-attention.md.
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
  // Layouts of the sequence dimension only, in any order, which may differ: "[cp:zigzag]".
  Layout q, kv;
  int64_t q_length = 0, kv_length = 0;
  int64_t q_start = 0, kv_start = 0;  // positions of the first query and key
  // The axes of the ring. Two: the outer and the inner axis of a ring of rings. More: one ring, in
  // their order.
  AxisList axes;
  // Local sizes of one rank, after other axes have sharded batch and heads. KV heads are never
  // repeated.
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
  std::vector<RingMessage> sends, receives;  // KV, the same in forward and backward
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

// Bytes that one rank holds at its peak. Scratch memory of kernels is counted if it grows with
// head_dim times the sequence length.
struct RingMemory {
  int64_t tensors = 0;     // arguments and results, in the tensors' type
  int64_t carry = 0;       // of each query: log-sum-exp, sum of exponentials or delta, and the sum
                           // of o or dq, if it is wider than the result
  int64_t kv_buffers = 0;  // blocks of other ring ranks, on their way
  // Gradients on their way, and that of the own block if its sum is wider than the result.
  int64_t gradient_buffers = 0;
  int64_t total() const { return tensors + carry + kv_buffers + gradient_buffers; }
};

class RingSchedule {
 public:
  // The most ranks of a ring. There is a turn for each pair of ranks: 2 GB of turns.
  static constexpr int kMostRanks = 4096;

  // Errors: kInvalidArgument, naming the remedy, for more than kMostRanks; heads that are not a
  // multiple of kv_heads; sizes that are negative or too large to count; a type that is not a
  // float; no axes, or axes that overlap; layouts that are not sharded over all of the ring's axes,
  // or over others; a mask that does not fit.
  static absl::StatusOr<RingSchedule> Create(const RingProblem& problem);

  const RingProblem& problem() const { return problem_; }
  int ring_size() const { return static_cast<int>(q_.size()); }
  // The size of the outer axis; 1 if it is a single ring (also if one of two axes has size 1).
  int outer_size() const { return outer_size_; }
  absl::Span<const RingStep> steps() const { return steps_; }

  // The positions that a ring rank holds; and the bytes of a block, and of its gradient (in the
  // accumulator's type).
  const IndexSet& q_positions(int ring_rank) const { return q_[ring_rank]; }
  const IndexSet& kv_positions(int ring_rank) const { return kv_[ring_rank]; }
  int64_t BlockBytes(int block) const;
  int64_t GradientBytes(int block) const;

  // Bytes that a ring rank sends. Backward: KV again, and gradients.
  int64_t ForwardBytes(int ring_rank) const;
  int64_t BackwardBytes(int ring_rank) const;
  // The same per link that is used, ascending.
  std::vector<RingLink> Links() const;
  // The number of KV blocks, and of gradients, that go from one inner ring to another, over all
  // ring ranks.
  int CrossingBlocks() const;
  int CrossingGradients() const;

  // Total work / (ring ranks * the sum over steps of the largest work): 1 if no ring rank ever
  // waits, or if there is no work.
  double Balance() const;

  // The number of blocks that a ring rank works on. Whether it sums gradients, of several blocks or
  // from several ring ranks; a gradient with a single term is rounded at once.
  int BlocksOf(int ring_rank) const;
  bool SumsGradients(int ring_rank) const;

  RingMemory ForwardMemory(int ring_rank) const;
  RingMemory BackwardMemory(int ring_rank) const;
  int64_t PeakBytes() const;  // of the ring rank that has most

  // Bytes of heap memory that the schedule itself takes.
  int64_t OwnBytes() const;

  // Proves the schedule from its messages: every ring rank works exactly once on each block of
  // which it may see anything, and has the block then; whatever is sent is received, and the sender
  // has it; the gradient of a block contains each ring rank's share once, at its owner; blocks on
  // their way fit their buffers. O(ring_size^3): for tests.
  absl::Status Verify() const;

  // Three lines: the mesh, the attention and the sequence.
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
