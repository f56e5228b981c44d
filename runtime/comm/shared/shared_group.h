// SharedGroup: where the processes of one group of ranks meet for their exchanges, as one of them
// sees it. What a member brings is on its Board; the protocol is that of RankGroup (local).
//
// Sources are described by their position in the member's arena. A source outside of it, in adopted
// memory, is first copied into the arena.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_SHARED_GROUP_H_
#define DTENSOR_RUNTIME_COMM_SHARED_SHARED_GROUP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/comm/shared/board.h"
#include "dtensor/runtime/comm/shared/host_ranks.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Belongs to one rank's thread; `host` outlives it.
class SharedGroup {
 public:
  // `world` outlives it, too. Requires: the ranks are ascending and all on this host, the host's
  // own rank among them.
  SharedGroup(HostRanks& host, const WorldState& world, absl::Span<const int> ranks);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  absl::Span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  uint64_t key() const { return key_; }
  int IndexOf(int rank) const;  // Requires: rank is a member.

  uint64_t posted(int member) const;
  bool Reached(int member, ExchangeStage stage, uint64_t number) const {
    const BoardGroup* const place = PlaceOf(member);
    return place != nullptr && place->counter(stage).load(std::memory_order_seq_cst) >= number;
  }
  // Sleeps until the member may have reached that stage, but no longer than the given time.
  void SleepUntilReached(int member, ExchangeStage stage, uint64_t number,
                         int64_t microseconds) const;

  // Errors: kResourceExhausted if the arena or the board is full; those of a copy.
  absl::Status Post(int member, uint64_t number, const Collective& collective,
                    absl::Span<const ExchangePart> parts, uint64_t reads, const DeviceEvent& ready);
  void PublishDone(int member, uint64_t number, const DeviceEvent& done);
  void Release(int member, uint64_t number);

  bool IsSameCall(int a, int b, uint64_t number) const {
    return post(a, number).call == post(b, number).call;
  }
  // Whether the member has left an exchange that failed; what it posted may then be overwritten.
  bool has_withdrawn(int member) const {
    return members_[member].host->board().withdrawn.load(std::memory_order_relaxed);
  }
  // For a peer that disagrees: waits some seconds until it has published its own summary, unless
  // the world fails, since a peer that first learns of a failure publishes none.
  CallSummary SummaryOf(int member, uint64_t number) const;
  bool ReadsFrom(int reader, int member, uint64_t number) const {
    return size() > kMostReadBits || (post(reader, number).reads & ReadBit(member)) != 0;
  }
  // Undefined if the member sends nothing, or if its description does not fit its arena.
  const Tensor& SourceOf(int member, uint64_t number, size_t part);
  // Devices whose work is done when a launch returns have no events.
  DeviceEvent ready(int, uint64_t) const { return {}; }
  DeviceEvent done(int, uint64_t) const { return {}; }

 private:
  // What this rank brings to the exchanges with even numbers, or to those with odd ones.
  struct Mine {
    const Collective* collective = nullptr;
    absl::Span<const ExchangePart> parts;
    std::vector<Tensor> copies;  // of sources outside the arena
    char* pages = nullptr;       // for descriptions that the board has no room for
    int64_t page_bytes = 0;
  };
  struct Member {
    const HostRank* host = nullptr;
    mutable const BoardGroup* place = nullptr;  // null: not seen yet
    std::array<Tensor, 16> arena;               // the whole arena as one tensor, by DType
    std::vector<Tensor> sources;                // of exchange `number`
    uint64_t number = 0;
  };

  const BoardGroup* PlaceOf(int member) const {
    const Member& of = members_[member];
    if (of.place == nullptr) of.place = FindGroup(of.host->board(), key_);
    return of.place;
  }
  const BoardGroup::Post& post(int member, uint64_t number) const {
    return members_[member].place->posts[number % 2];
  }
  absl::Status Describe(const ExchangePart& part, Mine& mine);
  absl::Status WriteWords(Mine& mine, BoardGroup::Post& post);
  Tensor ReadSource(Member& member, absl::Span<const uint64_t>& words) const;
  void Publish(ExchangeStage stage, uint64_t number);

  HostRanks& host_;
  const WorldState& world_;
  const std::vector<int> ranks_;
  const uint64_t key_;
  std::vector<Member> members_;
  BoardGroup* const mine_;  // null: the board is full
  Mine posted_[2];
  std::vector<uint64_t> words_;  // of the current post; kept to reuse its memory
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_SHARED_GROUP_H_
