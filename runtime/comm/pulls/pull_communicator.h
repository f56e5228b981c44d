// PullCommunicator: ranks that read each other's memory, threads of one process or processes of one
// host. What they have in common, and where they meet, is a World: see below.
//
// An exchange, on each rank of the group:
//   1. publishes its sources, what it is about to do, and an event that says when the sources are
//      ready;
//   2. copies what it has itself, where its device works at once: it would wait otherwise; waits on
//      the host until every member has posted, and checks that all do the same;
//   3. makes its queue wait for the peers' ready events, and launches its pulls: one pass from the
//      peers' memory into its own, without staging. On a GPU they run beside what the rank launched
//      since it began (CudaTransfers);
//   4. publishes an event that says when its pulls have run;
//   5. waits on the host until those who read from it have published that, and makes its queue wait
//      for their events.
// So what the rank launches afterwards, and the reuse of what it frees afterwards, come after its
// peers' reads: that is why pulls may keep bare pointers although they run later (deferred
// devices), and why the caller may drop or overwrite a source as soon as the call returns. A device
// that failed honours these events too.
//
// Begin is step 1, Finish the others. A rank that drops an exchange leaves its memory with the
// communicator, and goes on: were it to wait for readers there, one that returns because of an
// error would wait for peers that wait for it, and the error would be lost.
//
// When the world fails, a rank leaves with its peers' reads complete as well: Withdraw(). It waits
// only for those that are reading at that moment, so a rank that is silent since it began, or
// stuck, holds nobody up.
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

// Of one rank's thread. The world and the device outlive it.
//
// A World has
//   Group        where the members of one group meet, exchange after exchange: its ranks(),
//                IndexOf, posted, Reached, Post, PublishDone; what a member posted (IsSameCall,
//                SummaryOf, ReadsFrom, SourceOf, ready, done); and Release, after which the rank no
//                longer needs what it posted
//   Wait         {rank, group, member, stage, number, op}: until the member reaches the stage
//   GroupOf, Await, Fail, failed, failure, size
//   Met          what a rank says of the world's failure that it meets in an exchange
//   BeginReading, EndReading, reading    for a rank that withdraws from what failed
// world.h (local) has the manual of each.
template <typename WorldType>
class PullCommunicator final : public Communicator {
 public:
  // Sleeps up to max_delay_us before each exchange: for tests, to shake the order of events.
  PullCommunicator(WorldType& world, int rank, Device& device, uint64_t seed = 0,
                   int max_delay_us = 0);

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  absl::Status FinishDropped() override;
  absl::Status Barrier(absl::string_view what) override;
  absl::Status Fail(const absl::Status& reason) override { return world_.Fail(rank_, reason); }
  absl::Status failure() const override { return world_.failure(); }

  // No rank exchanges anything any more: lets go of what was dropped, and of what will be.
  void End();

 private:
  absl::Status BeginExchange(const Collective& collective,
                             absl::Span<const ExchangePart> parts) override;
  absl::Status FinishExchange(const Collective& collective) override;
  void DropExchange(const Collective& collective, std::shared_ptr<const void> owner) override;

  using Group = typename WorldType::Group;

  // How many groups it remembers that have no exchange on its way.
  static constexpr size_t kMostIdle = 64;

  // A group as this rank sees it. Forgetting it is harmless: the group knows the number.
  struct Membership {
    std::shared_ptr<Group> group;
    int me;            // index in the group
    uint64_t number;   // of the last exchange that this rank began
    uint64_t use = 0;  // when it was used last
    // The exchange on its way; null if there is none.
    const Collective* collective = nullptr;
    absl::Span<const ExchangePart> parts;
    uint64_t begun = 0;                 // the how manieth of this rank
    DeviceEvent ready;                  // its sources are, and its results may be written
    std::shared_ptr<const void> owner;  // of what was dropped
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
  bool IsOwn(const ReceiveBox& box) const;  // and is moved before the peers are waited for
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
  // To pulls_. False: there is nothing to move.
  bool AddPull(const ExchangePart& part, const ReceiveBox& box,
               absl::Span<const Tensor* const> sources);
  absl::Status LaunchPulls(const Membership& in);
  absl::Status AwaitReaders(const Collective& collective, const Membership& in);
  absl::Status Withdraw(const Membership& in, const absl::Status& reason);

  WorldType& world_;
  const int rank_;
  Device& device_;
  const bool has_events_;  // false where work is done when a launch returns
  const int max_delay_us_;
  std::mt19937_64 random_;
  std::vector<int> everyone_;
  std::vector<Membership> memberships_;  // kMostIdle, and those with an exchange on its way
  uint64_t uses_ = 0;
  // What came of exchanges that a later Begin finished, until their own Finish asks. Few or none.
  std::vector<std::pair<const Collective*, absl::Status>> finished_;
  uint64_t begun_ = 0;
  bool ended_ = false;
  size_t last_membership_ = 0;
  std::vector<kernels::BoxMove> pulls_;  // of the exchange at hand; kept for its memory
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_H_
