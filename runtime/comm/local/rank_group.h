// RankGroup: where the threads of one group of ranks meet for their exchanges.
//
// Every member numbers the group's exchanges for itself; the numbers agree because all members make
// these exchanges in one order. In each, a member publishes twice: what it brings ("posted"), and
// that its own reads have been launched ("done").
//
// What a member posts has two slots, for even and odd numbers, and is never cleared. A member
// overwrites its post of exchange k when it posts k + 2. By then each peer has posted k + 1, and so
// has read all that it wanted of k. Therefore no barrier is needed between two exchanges.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_RANK_GROUP_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_RANK_GROUP_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace DTENSOR_EXPORT dtensor {

class RankGroup {
 public:
  explicit RankGroup(absl::Span<const int> ranks)
      : ranks_(ranks.begin(), ranks.end()), members_(ranks.size()) {}

  absl::Span<const int> ranks() const { return ranks_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int IndexOf(int rank) const;  // Requires: rank is a member.

  // The number of the exchange that the member posted last. Called by that member.
  uint64_t posted(int member) const {
    return counter(member, ExchangeStage::kPosted).load(std::memory_order_relaxed);
  }
  bool Reached(int member, ExchangeStage stage, uint64_t number) const {
    return counter(member, stage).load(std::memory_order_seq_cst) >= number;
  }

  // Publishes what the member brings to exchange `number`, the next one. `collective`'s description
  // and `parts` stay valid until all that read them are done.
  absl::Status Post(int member, uint64_t number, const Collective& collective,
                    absl::Span<const ExchangePart> parts, uint64_t reads, DeviceEvent ready);
  // Publishes that the member's reads have been launched; `done` says when they have run.
  void PublishDone(int member, uint64_t number, DeviceEvent done);
  // No member reads from this one any more.
  void Release(int, uint64_t) {}

  // Access to a post, for members that have seen that it was published.
  bool IsSameCall(int a, int b, uint64_t number) const {
    return post(a, number).call == post(b, number).call;
  }
  CallSummary SummaryOf(int member, uint64_t number) const;
  bool ReadsFrom(int reader, int member, uint64_t number) const {
    return size() > kMostReadBits || (post(reader, number).reads & ReadBit(member)) != 0;
  }
  const Tensor& SourceOf(int member, uint64_t number, size_t part) const {
    return post(member, number).parts[part].src;
  }
  const DeviceEvent& ready(int member, uint64_t number) const {
    return details(member, number).ready;
  }
  const DeviceEvent& done(int member, uint64_t number) const {
    return details(member, number).done;
  }

  // Sleeps until `ready` returns true, but no longer than `until`. `ready` is called after each
  // publication and after Wake().
  template <typename Ready>
  void SleepUntil(std::chrono::steady_clock::time_point until, Ready ready) {
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait_until(lock, until, ready);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void Wake();

 private:
  // What the fast path reads of a peer. With the two counters, it fills one cache line per member.
  struct Posted {
    uint64_t call = 0;   // fingerprint of Details; differs if ranks are not in the same exchange
    uint64_t reads = 0;  // bit i: this member reads from member i; see ReadsFrom()
    const ExchangePart* parts = nullptr;
  };
  struct Details {
    std::string op;  // keeps its memory from exchange to exchange
    CollectiveKind kind = CollectiveKind::kExchange;
    uint64_t digest = 0;
    const CallDescription* description = nullptr;
    size_t parts = 0;
    DeviceEvent ready, done;  // only where devices have events
  };
  struct alignas(64) Member {
    std::atomic<uint64_t> counters[2] = {0, 0};  // the last number posted, and done
    Posted posts[2];
    Details details[2];
  };

  const std::atomic<uint64_t>& counter(int member, ExchangeStage stage) const {
    return members_[member].counters[static_cast<int>(stage)];
  }
  const Posted& post(int member, uint64_t number) const {
    return members_[member].posts[number % 2];
  }
  const Details& details(int member, uint64_t number) const {
    return members_[member].details[number % 2];
  }
  // Sequentially consistent: a sleeper that does not see the new number will be woken.
  void Publish(int member, ExchangeStage stage, uint64_t number) {
    members_[member].counters[static_cast<int>(stage)].store(number, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) WakeFor(stage, number);
  }
  void WakeFor(ExchangeStage stage, uint64_t number);

  const std::vector<int> ranks_;
  std::vector<Member> members_;
  alignas(64) std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_RANK_GROUP_H_
