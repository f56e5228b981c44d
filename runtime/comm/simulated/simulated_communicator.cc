#include "dtensor/runtime/comm/simulated/simulated_communicator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/machine_rates.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// One rank of a simulated world: refuses what LocalCommunicator refuses, and counts the rest.
class SimulatedCommunicator final : public Communicator {
 public:
  SimulatedCommunicator(int rank, int size, SimulatedClock* clock)
      : rank_(rank), size_(size), clock_(clock) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override {
    DT_RETURN_IF_ERROR(failure_);
    DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size_, /*device=*/nullptr));
    CountBoxes(collective, parts);
    Start(collective, parts);
    return absl::OkStatus();
  }

  absl::Status FinishExchange(const Collective& collective) override {
    const auto begun = Find([&](const Pending& one) { return one.collective == &collective; });
    if (begun != pending_.end()) {
      WaitFor(*begun);
      pending_.erase(begun);
    }
    return failure_;
  }
  // Its links stay busy, but nobody waits. Memory is kept as long as on a rank that really runs.
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override {
    const auto begun = Find([&](const Pending& one) { return one.collective == &collective; });
    if (begun == pending_.end()) return;
    begun->dropped = true;
    begun->owner = std::move(owner);
  }
  absl::Status FinishDropped() override {
    std::erase_if(pending_, [](const Pending& one) { return one.dropped; });
    return failure_;
  }

  absl::Status Barrier(absl::string_view) override { return failure_; }

  absl::Status Fail(const absl::Status& reason) override {
    DT_REQUIRE(!reason.ok(), "Communicator::Fail: the reason must be an error");
    if (failure_.ok()) {
      failure_ = absl::Status(reason.code(), absl::StrCat("rank ", rank_, ": ", reason.message()));
    }
    return failure_;
  }
  absl::Status failure() const override { return failure_; }

 private:
  // The bytes that a transport would carry.
  void CountBoxes(const Collective& collective, absl::Span<const ExchangePart> parts) {
    int64_t messages = 0, bytes = 0;
    for (const ExchangePart& part : parts) {
      const int64_t size = SizeOf((part.src.defined() ? part.src : part.dst).dtype());
      for (const ReceiveBox& box : part.receives) {
        const int64_t others = box.peers.size() - absl::c_count(box.peers, rank_);
        if (box.elements() == 0) continue;
        messages += others;
        bytes += others * box.elements() * size;
      }
    }
    Count(collective, messages, bytes);
  }

  // An exchange that has begun.
  struct Pending {
    const Collective* collective;
    double end;
    bool dropped = false;
    std::shared_ptr<const void> owner = nullptr;
  };

  void WaitFor(const Pending& one) {
    if (clock_ != nullptr && !one.dropped) clock_->WaitUntil(one.end);
  }

  template <typename Predicate>
  std::vector<Pending>::iterator Find(Predicate predicate) {
    return std::find_if(pending_.begin(), pending_.end(), predicate);
  }

  // A group has at most one exchange in flight: the one before is waited for first.
  void Start(const Collective& collective, absl::Span<const ExchangePart> parts) {
    const auto before =
        Find([&](const Pending& one) { return one.collective->group == collective.group; });
    if (before != pending_.end()) {
      WaitFor(*before);
      pending_.erase(before);
    }
    const double end =
        clock_ == nullptr ? 0 : clock_->Communicate(collective.axes, Seconds(collective, parts));
    pending_.push_back({&collective, end});
  }

  double Seconds(const Collective& collective, absl::Span<const ExchangePart> parts) const {
    const MachineRates& rates = clock_->rates();
    const LinkSpeed& link = rates.LinkOfLabel(collective.axes);
    double seconds = 0, latency = 0;
    for (const ExchangePart& part : parts) {
      const int64_t size = SizeOf((part.src.defined() ? part.src : part.dst).dtype());
      const RoundSeconds round = SecondsOfRound(rates, part.receives, size, rank_,
                                                [&](int) -> const LinkSpeed& { return link; });
      seconds += round.work;
      latency = std::max(latency, round.latency);
    }
    return seconds + latency;
  }

  const int rank_, size_;
  SimulatedClock* const clock_;
  std::vector<Pending> pending_;  // few
  absl::Status failure_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size, SimulatedClock* clock) {
  DT_REQUIRE(0 <= rank && rank < size,
             "MakeSimulatedCommunicator: the rank must be one of the world's");
  return std::make_unique<SimulatedCommunicator>(rank, size, clock);
}

}  // namespace dtensor
