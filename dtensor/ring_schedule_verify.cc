// The proof of a ring's schedule: plays its messages and asks where everything is.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ring_schedule.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Messages = std::vector<RingMessage> RingTurn::*;

class RingProof {
 public:
  RingProof(const RingSchedule& schedule, std::vector<int> kv_buffers)
      : schedule_(schedule),
        places_(schedule.places()),
        kv_buffers_(std::move(kv_buffers)),
        visits_(places_ * places_),
        arrived_(places_ * places_, kNever),
        last_use_(places_ * places_, kNever),
        shares_(places_ * places_) {}

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
  const RingTurn& Turn(int place) const { return schedule_.steps()[step_].turns[place]; }
  int At(int place, int block) const { return place * places_ + block; }

  absl::Status Wrong(int place, int block, absl::string_view what) const {
    return absl::InternalError(
        absl::StrCat("ring: step ", step_, ", place ", place, ", block ", block, ": ", what));
  }

  bool Has(int place, int block) const {
    return place == block || arrived_[At(place, block)] != kNever;
  }

  absl::Status CheckTurns() {
    for (int place = 0; place < places_; ++place) {
      const RingTurn& turn = Turn(place);
      const AttentionMask& mask = schedule_.problem().mask;
      const IndexSet& q = schedule_.q_positions(place);
      const IndexSet& kv = schedule_.kv_positions(turn.source);
      if (turn.work != mask.Count(q, kv) || turn.block_case != mask.Classify(q, kv)) {
        return Wrong(place, turn.source, "the work is not the block's");
      }
      if (turn.work == 0) continue;
      if (!Has(place, turn.source)) return Wrong(place, turn.source, "works on what it lacks");
      const int at = At(place, turn.source);
      ++visits_[at];
      last_use_[at] = step_;
      shares_[at].push_back(place);
    }
    return absl::OkStatus();
  }

  // Each send of this step is one receive, and the other way round.
  absl::Status CheckPaired(Messages sends, Messages receives) const {
    int unmatched = 0;
    for (int place = 0; place < places_; ++place) {
      unmatched -= static_cast<int>((Turn(place).*receives).size());
      for (const RingMessage& sent : Turn(place).*sends) {
        RingMessage received = sent;
        received.peer = place;
        const std::vector<RingMessage>& there = Turn(sent.peer).*receives;
        if (sent.peer == place || std::count(there.begin(), there.end(), received) != 1) {
          return Wrong(place, sent.block, "what is sent is not received once");
        }
        ++unmatched;
      }
    }
    return unmatched == 0 ? absl::OkStatus() : Wrong(0, 0, "what is received is not sent");
  }

  absl::Status MoveBlocks() {
    std::vector<int> arriving;
    for (int place = 0; place < places_; ++place) {
      for (const RingMessage& sent : Turn(place).sends) {
        if (!Has(place, sent.block)) return Wrong(place, sent.block, "sends what it lacks");
        if (Has(sent.peer, sent.block)) return Wrong(sent.peer, sent.block, "is sent it again");
        if (sent.bytes != schedule_.BlockBytes(sent.block)) {
          return Wrong(place, sent.block, "sends another number of bytes than the block has");
        }
        last_use_[At(place, sent.block)] = step_;
        arriving.push_back(At(sent.peer, sent.block));
      }
    }
    for (const int at : arriving) arrived_[at] = step_;
    return absl::OkStatus();
  }

  // All leave before any arrives.
  void MoveGradients() {
    std::vector<std::pair<int, std::vector<int>>> moving;
    for (int place = 0; place < places_; ++place) {
      for (const RingMessage& sent : Turn(place).gradient_sends) {
        moving.push_back({At(sent.peer, sent.block), {}});
        std::swap(moving.back().second, shares_[At(place, sent.block)]);
      }
    }
    for (const auto& [at, shares] : moving) {
      shares_[at].insert(shares_[at].end(), shares.begin(), shares.end());
    }
  }

  bool Needs(int place, int block) const {
    const AttentionMask& mask = schedule_.problem().mask;
    return mask.Count(schedule_.q_positions(place), schedule_.kv_positions(block)) > 0;
  }

  absl::Status CheckVisits() const {
    for (int place = 0; place < places_; ++place) {
      for (int block = 0; block < places_; ++block) {
        const int visits = visits_[At(place, block)];
        if (visits != (Needs(place, block) ? 1 : 0)) {
          return Wrong(place, block, absl::StrCat("works on it ", visits, " times"));
        }
        if (arrived_[At(place, block)] != kNever && visits == 0) {
          return Wrong(place, block, "receives what it does not need");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckGradients() const {
    for (int place = 0; place < places_; ++place) {
      for (int block = 0; block < places_; ++block) {
        std::vector<int> expected;
        for (int p = 0; place == block && p < places_; ++p) {
          if (Needs(p, block)) expected.push_back(p);
        }
        std::vector<int> shares = shares_[At(place, block)];
        std::sort(shares.begin(), shares.end());
        if (shares != expected) return Wrong(place, block, "the gradient is not whole");
      }
    }
    return absl::OkStatus();
  }

  // A block lies in a buffer from the step in which it arrives to the last that uses it.
  absl::Status CheckBuffers() const {
    for (int place = 0; place < places_; ++place) {
      for (int step = 0; step < Steps(); ++step) {
        int held = 0;
        for (int block = 0; block < places_; ++block) {
          const int at = At(place, block);
          held += arrived_[at] != kNever && arrived_[at] <= step && step <= last_use_[at];
        }
        if (held > kv_buffers_[place]) {
          return Wrong(place, held, absl::StrCat("blocks are more than ", kv_buffers_[place]));
        }
      }
    }
    return absl::OkStatus();
  }

  const RingSchedule& schedule_;
  const int places_;
  const std::vector<int> kv_buffers_;  // by place
  int step_ = 0;
  // By place, then block.
  std::vector<int> visits_;
  std::vector<int> arrived_, last_use_;   // steps
  std::vector<std::vector<int>> shares_;  // the places whose shares a gradient there holds
};

}  // namespace

absl::Status RingSchedule::Verify() const {
  std::vector<int> kv_buffers;
  for (int place = 0; place < places(); ++place) kv_buffers.push_back(KvBuffers(place));
  return RingProof(*this, std::move(kv_buffers)).Run();
}

}  // namespace dtensor
