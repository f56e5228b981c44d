// Computes what a rank holds in each step. It mirrors how ring_executor.cc allocates and frees
// memory.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "dtensor/attention/ring_schedule.h"

namespace dtensor {
namespace {

bool Works(const RingTurn& turn) { return turn.block_case != BlockCase::kEmpty; }

// One ring rank's buffers.
class RingBuffers {
 public:
  RingBuffers(const RingSchedule& schedule, int ring_rank)
      : schedule_(schedule), ring_rank_(ring_rank) {
    for (int s = 0; s < Steps(); ++s) {
      for (const RingMessage& message : Turn(s).sends) last_use_[message.block] = s;
      if (Works(Turn(s))) last_use_[Turn(s).source] = s;
    }
  }

  // The kernel runs while blocks arrive.
  void FindForwardPeak(RingMemory& memory) {
    for (int s = 0; s < Steps(); ++s) {
      Receive(Turn(s));
      Note(0, memory);
      DropBlocks(s);
    }
  }

  // As above, and then gradients move. A sum that is accumulated in the result needs no extra
  // memory.
  void FindBackwardPeak(bool in_results, RingMemory& memory) {
    home_bytes_ = in_results ? 0 : schedule_.GradientBytes(ring_rank_);
    for (int s = 0; s < Steps(); ++s) {
      Receive(Turn(s));
      const int64_t share = BeginShare(Turn(s));
      Note(GradientsHeld() + share, memory);
      DropBlocks(s);
      if (share > 0) gradients_.insert(Turn(s).source);
      const int64_t coming = BeginReceiving(Turn(s));
      Note(GradientsHeld() + coming, memory);
      Move(Turn(s));
    }
  }

 private:
  int Steps() const { return static_cast<int>(schedule_.steps().size()); }
  const RingTurn& Turn(int step) const { return schedule_.steps()[step].turns[ring_rank_]; }

  void Note(int64_t gradient_bytes, RingMemory& peak) const {
    if (block_bytes_ + gradient_bytes <= peak.kv_buffers + peak.gradient_buffers) return;
    peak.kv_buffers = block_bytes_;
    peak.gradient_buffers = gradient_bytes;
  }

  void Receive(const RingTurn& turn) {
    for (const RingMessage& message : turn.receives) block_bytes_ += message.bytes;
  }

  // Drops the blocks that no later step needs.
  void DropBlocks(int step) {
    std::set<int> used = {Turn(step).source};
    for (const RingMessage& message : Turn(step).sends) used.insert(message.block);
    for (const int block : used) {
      const auto last = last_use_.find(block);
      const bool ends = last != last_use_.end() && last->second == step;
      if (ends && block != ring_rank_) block_bytes_ -= schedule_.BlockBytes(block);
    }
  }

  int64_t GradientsHeld() const {
    int64_t bytes = at_home_ ? home_bytes_ : 0;
    for (const int block : gradients_) bytes += schedule_.GradientBytes(block);
    return bytes;
  }

  // A share is computed in memory of its own, beside the sum that it is then added to. The share of
  // the own block is computed at home.
  int64_t BeginShare(const RingTurn& turn) {
    if (!Works(turn)) return 0;
    if (turn.source != ring_rank_) return schedule_.GradientBytes(turn.source);
    at_home_ = true;
    return 0;
  }

  int64_t BeginReceiving(const RingTurn& turn) {
    int64_t bytes = 0;
    for (const RingMessage& message : turn.gradient_receives) {
      const bool to_home = message.block == ring_rank_ && !at_home_;
      if (to_home) at_home_ = true;
      bytes += to_home ? 0 : message.bytes;
    }
    return bytes;
  }

  void Move(const RingTurn& turn) {
    for (const RingMessage& message : turn.gradient_sends) {
      if (message.block == ring_rank_) at_home_ = false;
      gradients_.erase(message.block);
    }
    for (const RingMessage& message : turn.gradient_receives) {
      if (message.block != ring_rank_) gradients_.insert(message.block);
    }
  }

  const RingSchedule& schedule_;
  const int ring_rank_;
  std::map<int, int> last_use_;  // the last step that uses a block, by block
  int64_t block_bytes_ = 0;      // of other ring ranks' blocks that are here
  std::set<int> gradients_;      // other ring ranks' blocks whose gradients are here
  bool at_home_ = false;         // there is a sum for the own block's gradient
  int64_t home_bytes_ = 0;
};

}  // namespace

int RingSchedule::BlocksOf(int ring_rank) const {
  int blocks = 0;
  for (const RingStep& step : steps_) blocks += Works(step.turns[ring_rank]);
  return blocks;
}

bool RingSchedule::SumsGradients(int ring_rank) const {
  if (BlocksOf(ring_rank) > 1) return true;
  for (const RingStep& step : steps_) {
    const RingTurn& turn = step.turns[ring_rank];
    if (!turn.gradient_sends.empty() || !turn.gradient_receives.empty()) return true;
  }
  return false;
}

RingMemory RingSchedule::ForwardMemory(int ring_rank) const {
  const RingProblem& p = problem_;
  const int64_t element = SizeOf(p.dtype), sum = SizeOf(AccumulatorOf(p.dtype));
  const int64_t rows = p.batch * p.heads * q_[ring_rank].size(), blocks = BlocksOf(ring_rank);
  RingMemory memory;
  memory.tensors = 2 * element * rows * p.head_dim + BlockBytes(ring_rank);  // q, o, k, v
  memory.carry = (blocks > 1 ? 2 : 1) * sum * rows;
  if (sum > element) memory.carry += sum * WideRows(ring_rank, blocks > 1, blocks) * p.head_dim;
  RingBuffers(*this, ring_rank).FindForwardPeak(memory);
  return memory;
}

RingMemory RingSchedule::BackwardMemory(int ring_rank) const {
  const RingProblem& p = problem_;
  const int64_t element = SizeOf(p.dtype), sum = SizeOf(AccumulatorOf(p.dtype));
  const int64_t rows = p.batch * p.heads * q_[ring_rank].size(), blocks = BlocksOf(ring_rank);
  const bool sums = SumsGradients(ring_rank);
  RingMemory memory;
  // q, o, do, dq; kv, dkv
  memory.tensors = 4 * element * rows * p.head_dim + 2 * BlockBytes(ring_rank);
  memory.carry = (blocks > 0 ? 2 : 1) * sum * rows;
  if (sum > element) memory.carry += sum * WideRows(ring_rank, sums, blocks) * p.head_dim;
  RingBuffers(*this, ring_rank).FindBackwardPeak(sum == element || !sums, memory);
  return memory;
}

// The number of rows whose sums are held in a wider type than the results: all rows if the sums are
// carried from step to step, else those that the kernel works on, of one group of heads at a time.
int64_t RingSchedule::WideRows(int ring_rank, bool carried, int64_t blocks) const {
  const int64_t heads =
      carried ? problem_.batch * problem_.heads : problem_.heads / problem_.kv_heads;
  return blocks == 0 ? 0 : heads * q_[ring_rank].size();
}

int64_t RingSchedule::PeakBytes() const {
  int64_t peak = 0;
  for (int ring_rank = 0; ring_rank < ring_size(); ++ring_rank) {
    peak = std::max({peak, ForwardMemory(ring_rank).total(), BackwardMemory(ring_rank).total()});
  }
  return peak;
}

}  // namespace dtensor
