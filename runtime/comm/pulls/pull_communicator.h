// PullCommunicator: for ranks that can read each other's memory, as threads of one process or
// processes of one host. A World, described below, is what the ranks have in common.
//
// An exchange, on each rank of the group:
//   1. publishes its sources, what it is about to do, and an event that says when the sources are
//      ready;
//   2. copies the boxes that it receives from itself, if its device runs launches at once, so as to
//      use the time in which it would wait; waits on the host until every member has posted, and
//      checks that all make the same call;
//   3. makes its queue wait for the peers' ready events, and launches its pulls: one pass from the
//      peers' memory into its own, without staging. On a GPU they run concurrently with what the
//      rank has launched since Begin (CudaTransfers);
//   4. publishes an event that says when its pulls have run;
//   5. waits on the host until the ranks that read from it have published that event, and makes its
//      queue wait for their events.
// So what the rank launches afterwards, and the reuse of what it frees afterwards, come after its
// peers' reads. That is why pulls may hold bare pointers although they run later (deferred
// devices), and why the caller may drop or overwrite a source as soon as the call returns. A device
// that has failed still honours these events.
//
// Begin is step 1, Finish the others. A rank that drops an exchange leaves the memory of its
// tensors with the communicator and continues. If it waited for its readers there, a rank that
// returns because of an error would wait for peers that wait for it, and the error would be lost.
//
// When the world fails, too, a rank leaves an exchange only after its peers' reads are complete:
// Withdraw(). It waits only for ranks that are reading at that moment, so a rank that is silent
// since Begin, or stuck, delays nobody.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/box.h"

namespace DTENSOR_EXPORT dtensor {

// Belongs to one rank's thread. The world and the device outlive it.
//
// A World has
//   Group        where the members of one group meet for their exchanges: its ranks(), IndexOf,
//                posted, Reached, Post, PublishDone; what a member posted (IsSameCall, SummaryOf,
//                ReadsFrom, SourceOf, ready, done); and Release, after which the rank no longer
//                needs what it posted
//   Wait         {rank, group, member, stage, number, op}: until the member reaches the stage
//   GroupOf, Await, Fail, failed, failure, size
//   Met          what a rank reports of the world's failure when it meets it in an exchange
//   BeginReading, EndReading, reading    for a rank that withdraws from a failed exchange
// world.h (local) documents each of them.
template <typename WorldType>
class PullCommunicator final : public Communicator {
 public:
  // Sleeps a random time up to max_delay_us before each exchange: for tests, to vary the order of
  // events.
  PullCommunicator(WorldType& world, int rank, Device& device, uint64_t seed = 0,
                   int max_delay_us = 0);

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  absl::Status FinishDropped() override;
  absl::Status Barrier(absl::string_view what) override;
  absl::Status Fail(const absl::Status& reason) override { return world_.Fail(rank_, reason); }
  absl::Status failure() const override { return world_.failure(); }

  // Call it when no rank exchanges anything any more: frees what was dropped, and what will be
  // dropped.
  void End();

 private:
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override;
  absl::Status FinishExchange(const Collective& collective) override;
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override;

  using Group = typename WorldType::Group;

  // How many groups without an exchange in flight it remembers.
  static constexpr size_t kMostIdle = 64;

  // A group as this rank sees it. It may be forgotten, since the group knows the number.
  struct Membership {
    std::shared_ptr<Group> group;
    int me;            // index in the group
    uint64_t number;   // of the last exchange that this rank began
    uint64_t use = 0;  // when it was used last
    // The exchange in flight; null if there is none.
    const Collective* collective = nullptr;
    absl::Span<const ExchangePart> parts;
    uint64_t begun = 0;                 // the value of begun_ when it began
    DeviceEvent ready;                  // when sources are ready and results may be written
    std::shared_ptr<const void> owner;  // of a dropped exchange
  };

  Membership& MembershipOf(absl::Span<const int> ranks);
  Membership& NewMembership(absl::Span<const int> ranks);
  void Forget(const Collective& collective);
  void SleepAtRandom();
  absl::Status CheckUsable(const Collective& collective) const;
  absl::Status Meet(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Start(const Collective& collective, absl::Span<const ExchangePart> parts);
  absl::Status Complete(Membership& in);
  absl::Status Perform(const Collective& collective, const Membership& in);
  absl::Status Post(const Collective& collective, absl::Span<const ExchangePart> parts,
                    Membership& in);
  bool IsOwn(const ReceiveBox& box) const;  // moved before peers are waited for
  absl::Status MoveOwn(const Membership& in);
  absl::Status AwaitPosts(const Collective& collective, const Membership& in);
  absl::Status CompareCalls(const Membership& in) const;
  absl::Status PullFromPeers(const Collective& collective, absl::Span<const ExchangePart> parts,
                             const Membership& in);
  struct Traffic {
    int64_t messages = 0, bytes = 0;
  };
  absl::Status PlanPull(const Collective& collective, const ExchangePart& part,
                        const ReceiveBox& box, size_t index, const Membership& in,
                        Traffic& traffic);
  // Adds to pulls_. Returns false if there is nothing to move.
  bool AddPull(const ExchangePart& part, const ReceiveBox& box,
               absl::Span<const Tensor* const> sources);
  absl::Status LaunchPulls(const Membership& in);
  absl::Status AwaitReaders(const Collective& collective, const Membership& in);
  absl::Status Withdraw(const Membership& in, const absl::Status& reason);

  WorldType& world_;
  const int rank_;
  Device& device_;
  const bool has_events_;  // false if work is done when a launch returns
  const int max_delay_us_;
  std::mt19937_64 random_;
  std::vector<int> everyone_;
  std::vector<Membership> memberships_;  // at most kMostIdle idle ones, and those in flight
  uint64_t uses_ = 0;
  // Results of exchanges that a later Begin finished, until their own Finish fetches them. Few or
  // none.
  std::vector<std::pair<const Collective*, absl::Status>> finished_;
  uint64_t begun_ = 0;
  bool ended_ = false;
  size_t last_membership_ = 0;
  std::vector<kernels::BoxMove> pulls_;  // of the current exchange; kept to reuse its memory
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_H_
