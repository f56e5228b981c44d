// Verifies a ring's schedule: replays its messages and checks where everything is.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Messages = std::vector<RingMessage> RingTurn::*;

class RingProof {
 public:
  RingProof(const RingSchedule& schedule, std::vector<int> kv_buffers)
      : schedule_(schedule),
        ring_size_(schedule.ring_size()),
        kv_buffers_(std::move(kv_buffers)),
        visits_(ring_size_ * ring_size_),
        arrived_(ring_size_ * ring_size_, kNever),
        last_use_(ring_size_ * ring_size_, kNever),
        shares_(ring_size_ * ring_size_) {}

  absl::Status Run() {
    for (step_ = 0; step_ < Steps(); ++step_) {
      DT_RETURN_IF_ERROR(CheckTurns());
      DT_RETURN_IF_ERROR(CheckPaired(&RingTurn::sends, &RingTurn::receives));
      DT_RETURN_IF_ERROR(CheckPaired(&RingTurn::gradient_sends, &RingTurn::gradient_receives));
      DT_RETURN_IF_ERROR(MoveBlocks());
      MoveGradients();
    }
    DT_RETURN_IF_ERROR(CheckVisits());
    DT_RETURN_IF_ERROR(CheckGradients());
    return CheckBuffers();
  }

 private:
  static constexpr int kNever = -1;

  int Steps() const { return static_cast<int>(schedule_.steps().size()); }
  const RingTurn& Turn(int ring_rank) const { return schedule_.steps()[step_].turns[ring_rank]; }
  int At(int ring_rank, int block) const { return ring_rank * ring_size_ + block; }

  absl::Status Wrong(int ring_rank, int block, absl::string_view what) const {
    return absl::InternalError(
        absl::StrCat("ring: step ", step_, ", place ", ring_rank, ", block ", block, ": ", what));
  }

  bool Has(int ring_rank, int block) const {
    return ring_rank == block || arrived_[At(ring_rank, block)] != kNever;
  }

  absl::Status CheckTurns() {
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      const RingTurn& turn = Turn(ring_rank);
      const AttentionMask& mask = schedule_.problem().mask;
      const IndexSet& q = schedule_.q_positions(ring_rank);
      const IndexSet& kv = schedule_.kv_positions(turn.source);
      if (turn.work != mask.Count(q, kv) || turn.block_case != mask.Classify(q, kv)) {
        return Wrong(ring_rank, turn.source, "the work is not the block's");
      }
      if (turn.work == 0) continue;
      if (!Has(ring_rank, turn.source))
        return Wrong(ring_rank, turn.source, "works on what it lacks");
      const int at = At(ring_rank, turn.source);
      ++visits_[at];
      last_use_[at] = step_;
      shares_[at].push_back(ring_rank);
    }
    return absl::OkStatus();
  }

  // Checks that each send of this step has one receive, and vice versa.
  absl::Status CheckPaired(Messages sends, Messages receives) const {
    int unmatched = 0;
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      unmatched -= static_cast<int>((Turn(ring_rank).*receives).size());
      for (const RingMessage& sent : Turn(ring_rank).*sends) {
        RingMessage received = sent;
        received.peer = ring_rank;
        const std::vector<RingMessage>& there = Turn(sent.peer).*receives;
        if (sent.peer == ring_rank || std::count(there.begin(), there.end(), received) != 1) {
          return Wrong(ring_rank, sent.block, "what is sent is not received once");
        }
        ++unmatched;
      }
    }
    return unmatched == 0 ? absl::OkStatus() : Wrong(0, 0, "what is received is not sent");
  }

  absl::Status MoveBlocks() {
    std::vector<int> arriving;
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      for (const RingMessage& sent : Turn(ring_rank).sends) {
        if (!Has(ring_rank, sent.block)) return Wrong(ring_rank, sent.block, "sends what it lacks");
        if (Has(sent.peer, sent.block)) return Wrong(sent.peer, sent.block, "is sent it again");
        if (sent.bytes != schedule_.BlockBytes(sent.block)) {
          return Wrong(ring_rank, sent.block, "sends another number of bytes than the block has");
        }
        last_use_[At(ring_rank, sent.block)] = step_;
        arriving.push_back(At(sent.peer, sent.block));
      }
    }
    for (const int at : arriving) arrived_[at] = step_;
    return absl::OkStatus();
  }

  // All gradients leave before any arrives.
  void MoveGradients() {
    std::vector<std::pair<int, std::vector<int>>> moving;
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      for (const RingMessage& sent : Turn(ring_rank).gradient_sends) {
        moving.push_back({At(sent.peer, sent.block), {}});
        std::swap(moving.back().second, shares_[At(ring_rank, sent.block)]);
      }
    }
    for (const auto& [at, shares] : moving) {
      shares_[at].insert(shares_[at].end(), shares.begin(), shares.end());
    }
  }

  bool Needs(int ring_rank, int block) const {
    const AttentionMask& mask = schedule_.problem().mask;
    return mask.Count(schedule_.q_positions(ring_rank), schedule_.kv_positions(block)) > 0;
  }

  absl::Status CheckVisits() const {
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      for (int block = 0; block < ring_size_; ++block) {
        const int visits = visits_[At(ring_rank, block)];
        if (visits != (Needs(ring_rank, block) ? 1 : 0)) {
          return Wrong(ring_rank, block, absl::StrCat("works on it ", visits, " times"));
        }
        if (arrived_[At(ring_rank, block)] != kNever && visits == 0) {
          return Wrong(ring_rank, block, "receives what it does not need");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckGradients() const {
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      for (int block = 0; block < ring_size_; ++block) {
        std::vector<int> expected;
        for (int p = 0; ring_rank == block && p < ring_size_; ++p) {
          if (Needs(p, block)) expected.push_back(p);
        }
        std::vector<int> shares = shares_[At(ring_rank, block)];
        std::sort(shares.begin(), shares.end());
        if (shares != expected) return Wrong(ring_rank, block, "the gradient is not whole");
      }
    }
    return absl::OkStatus();
  }

  // A block occupies a buffer from the step in which it arrives to the last step that uses it.
  absl::Status CheckBuffers() const {
    for (int ring_rank = 0; ring_rank < ring_size_; ++ring_rank) {
      for (int step = 0; step < Steps(); ++step) {
        int held = 0;
        for (int block = 0; block < ring_size_; ++block) {
          const int at = At(ring_rank, block);
          held += arrived_[at] != kNever && arrived_[at] <= step && step <= last_use_[at];
        }
        if (held > kv_buffers_[ring_rank]) {
          return Wrong(ring_rank, held,
                       absl::StrCat("blocks are more than ", kv_buffers_[ring_rank]));
        }
      }
    }
    return absl::OkStatus();
  }

  const RingSchedule& schedule_;
  const int ring_size_;
  const std::vector<int> kv_buffers_;  // by ring rank
  int step_ = 0;
  // By ring rank, then block.
  std::vector<int> visits_;
  std::vector<int> arrived_, last_use_;   // steps
  std::vector<std::vector<int>> shares_;  // the ring ranks whose shares a gradient there holds
};

}  // namespace

absl::Status RingSchedule::Verify() const {
  std::vector<int> kv_buffers;
  for (int ring_rank = 0; ring_rank < ring_size(); ++ring_rank)
    kv_buffers.push_back(KvBuffers(ring_rank));
  return RingProof(*this, std::move(kv_buffers)).Run();
}

}  // namespace dtensor
