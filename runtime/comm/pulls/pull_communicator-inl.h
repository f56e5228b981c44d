// The implementation of PullCommunicator, for sources that instantiate it.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_INL_H_
#define DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_INL_H_

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/pulls/exchange_stage.h"
#include "dtensor/runtime/comm/pulls/pull_communicator.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_transfers.h"

namespace dtensor {

template <typename WorldType>
PullCommunicator<WorldType>::PullCommunicator(WorldType& world, int rank, Device& device,
                                              uint64_t seed, int max_delay_us)
    : world_(world),
      rank_(rank),
      device_(device),
      has_events_(device.kind() != Device::Kind::kCpu),
      max_delay_us_(max_delay_us),
      random_(seed + rank),
      everyone_(world.size()) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::BeginExchange(const Collective& collective,
                                                        absl::Span<const ExchangePart> parts) {
  DT_RETURN_IF_ERROR(CheckUsable(collective));
  DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size(), &device_));
  // If anything fails from here on, peers may already know of this exchange.
  const absl::Status status = NoThrow([&] { return Start(collective, parts); });
  return status.ok() ? status : world_.Met(world_.Fail(rank_, status), rank_, collective);
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::FinishExchange(const Collective& collective) {
  for (auto it = finished_.begin(); it != finished_.end(); ++it) {
    if (it->first != &collective) continue;
    const absl::Status status = std::move(it->second);
    finished_.erase(it);
    return status;
  }
  if (ended_) {
    Forget(collective);
    return CheckUsable(collective);
  }
  for (Membership& in : memberships_) {
    if (in.collective == &collective) return Complete(in);
  }
  return world_.failure();  // it never began
}

template <typename WorldType>
void PullCommunicator<WorldType>::DropExchange(const Collective& collective,
                                               std::shared_ptr<const void> owner) {
  if (ended_) Forget(collective);
  for (Membership& in : memberships_) {
    if (in.collective != &collective) continue;
    in.owner = std::move(owner);
    return;
  }
  std::erase_if(finished_, [&](const auto& known) { return known.first == &collective; });
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::FinishDropped() {
  while (true) {
    Membership* first = nullptr;
    for (Membership& in : memberships_) {
      if (in.owner != nullptr && (first == nullptr || in.begun < first->begun)) first = &in;
    }
    if (first == nullptr) return absl::OkStatus();
    const std::shared_ptr<const void> owner = std::move(first->owner);
    DT_RETURN_IF_ERROR(Complete(*first));
  }
}

template <typename WorldType>
void PullCommunicator<WorldType>::End() {
  ended_ = true;
  // Ranks that read what is freed here learn that this rank withdrew it.
  if (world_.failed()) world_.Fail(rank_, world_.failure()).IgnoreError();
  // Together with what groups keep of their peers' memory.
  std::erase_if(memberships_, [](const Membership& in) {
    return in.collective == nullptr || in.owner != nullptr;
  });
  last_membership_ = 0;
}

template <typename WorldType>
void PullCommunicator<WorldType>::Forget(const Collective& collective) {
  std::erase_if(memberships_, [&](const Membership& in) { return in.collective == &collective; });
  last_membership_ = 0;
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Barrier(absl::string_view what) {
  const Collective collective = {.op = what, .group = everyone_, .counts_as_call = false};
  DT_RETURN_IF_ERROR(CheckUsable(collective));
  return Meet(collective, {});
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::CheckUsable(const Collective& collective) const {
  if (world_.failed()) return world_.Met(world_.failure(), rank_, collective);
  return ended_ ? absl::FailedPreconditionError("the world is over") : absl::OkStatus();
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Meet(const Collective& collective,
                                               absl::Span<const ExchangePart> parts) {
  absl::Status status = Start(collective, parts);
  return status.ok() ? FinishExchange(collective) : status;
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Start(const Collective& collective,
                                                absl::Span<const ExchangePart> parts) {
  if (max_delay_us_ > 0) SleepAtRandom();
  Membership& in = MembershipOf(collective.group);
  if (in.collective != nullptr) {
    const Collective* const before = in.collective;
    const std::shared_ptr<const void> dropped = std::move(in.owner);
    const absl::Status status = Complete(in);
    if (dropped == nullptr) finished_.emplace_back(before, status);
    if (world_.failed()) return world_.failure();
  }
  // Before anything else: it allocates, and may throw.
  if (ReceivesNothing(parts)) Count(collective, 0, 0);
  ++in.number;
  DT_RETURN_IF_ERROR(Post(collective, parts, in));
  in.collective = &collective;
  in.parts = parts;
  in.begun = ++begun_;
  return absl::OkStatus();
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Complete(Membership& in) {
  const Collective& collective = *in.collective;
  in.collective = nullptr;
  absl::Status status = NoThrow([&] { return Perform(collective, in); });
  return status.ok() ? status : world_.Met(Withdraw(in, status), rank_, collective);
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Perform(const Collective& collective,
                                                  const Membership& in) {
  DT_RETURN_IF_ERROR(MoveOwn(in));
  DT_RETURN_IF_ERROR(AwaitPosts(collective, in));
  world_.BeginReading(rank_);  // until Withdraw() if anything here fails
  if (world_.failed()) return world_.failure();
  DT_RETURN_IF_ERROR(CompareCalls(in));
  DT_RETURN_IF_ERROR(PullFromPeers(collective, in.parts, in));
  DT_RETURN_IF_ERROR(world_.EndReading(rank_, *in.group));
  DT_RETURN_IF_ERROR(AwaitReaders(collective, in));
  in.group->Release(in.me, in.number);
  return absl::OkStatus();
}

template <typename WorldType>
void PullCommunicator<WorldType>::SleepAtRandom() {
  std::uniform_int_distribution<int> delay_us(0, max_delay_us_);
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random_)));
}

template <typename WorldType>
typename PullCommunicator<WorldType>::Membership& PullCommunicator<WorldType>::MembershipOf(
    absl::Span<const int> ranks) {
  // The same group as last time, or one of a few.
  for (size_t i = 0; i < memberships_.size(); ++i) {
    const size_t at = (last_membership_ + i) % memberships_.size();
    if (memberships_[at].group->ranks() != ranks) continue;
    memberships_[at].use = ++uses_;
    return memberships_[last_membership_ = at];
  }
  return NewMembership(ranks);
}

// Replaces the idle membership that was used least recently, once there are enough.
template <typename WorldType>
typename PullCommunicator<WorldType>::Membership& PullCommunicator<WorldType>::NewMembership(
    absl::Span<const int> ranks) {
  std::shared_ptr<Group> group = world_.GroupOf(ranks);
  size_t at = memberships_.size(), idle = 0;
  for (size_t i = 0; i < memberships_.size(); ++i) {
    if (memberships_[i].collective != nullptr) continue;
    ++idle;
    if (at == memberships_.size() || memberships_[i].use < memberships_[at].use) at = i;
  }
  if (idle < kMostIdle) at = memberships_.size();
  if (at == memberships_.size()) memberships_.emplace_back();
  const int me = group->IndexOf(rank_);
  const uint64_t number = group->posted(me);
  memberships_[at] = Membership{std::move(group), me, number, ++uses_};
  return memberships_[last_membership_ = at];
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Post(const Collective& collective,
                                               absl::Span<const ExchangePart> parts,
                                               Membership& in) {
  uint64_t reads = 0;
  for (const ExchangePart& part : parts) {
    for (const ReceiveBox& box : part.receives) {
      for (int peer : box.peers) reads |= ReadBit(in.group->IndexOf(peer));
    }
  }
  in.ready = has_events_ ? device_.Record() : DeviceEvent();
  return in.group->Post(in.me, in.number, collective, parts, reads, in.ready);
}

template <typename WorldType>
bool PullCommunicator<WorldType>::IsOwn(const ReceiveBox& box) const {
  return !has_events_ && box.peers.size() == 1 && box.peers[0] == rank_;
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::MoveOwn(const Membership& in) {
  pulls_.clear();
  for (const ExchangePart& part : in.parts) {
    const Tensor* const source = &part.src;
    for (const ReceiveBox& box : part.receives) {
      if (IsOwn(box)) AddPull(part, box, absl::MakeConstSpan(&source, 1));
    }
  }
  return LaunchPulls(in);
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::AwaitPosts(const Collective& collective,
                                                     const Membership& in) {
  for (int member = 0; member < in.group->size(); ++member) {
    DT_RETURN_IF_ERROR(
        world_.Await({rank_, *in.group, member, ExchangeStage::kPosted, in.number, collective.op}));
  }
  return absl::OkStatus();
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::CompareCalls(const Membership& in) const {
  Group& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (group.IsSameCall(in.me, member, in.number)) continue;
    const CallSummary mine = group.SummaryOf(in.me, in.number);  // before it asks the peer
    return Disagreement(in.number, group.ranks(), rank_, mine, group.ranks()[member],
                        group.SummaryOf(member, in.number));
  }
  return absl::OkStatus();
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::PullFromPeers(const Collective& collective,
                                                        absl::Span<const ExchangePart> parts,
                                                        const Membership& in) {
  pulls_.clear();
  Traffic traffic;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const ReceiveBox& box : parts[i].receives) {
      if (IsOwn(box)) continue;
      DT_RETURN_IF_ERROR(PlanPull(collective, parts[i], box, i, in, traffic));
    }
  }
  Group& group = *in.group;
  const CudaTransfers beside_kernels(device_, in.ready);
  for (int member = 0; has_events_ && member < group.size(); ++member) {
    if (member == in.me || !group.ReadsFrom(in.me, member, in.number)) continue;
    DT_RETURN_IF_ERROR(device_.Wait(group.ready(member, in.number)));
  }
  DT_RETURN_IF_ERROR(LaunchPulls(in));
  group.PublishDone(in.me, in.number, has_events_ ? device_.Record() : DeviceEvent());
  // After publishing: peers need not wait.
  if (!ReceivesNothing(parts)) Count(collective, traffic.messages, traffic.bytes);
  return absl::OkStatus();
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::PlanPull(const Collective& collective,
                                                   const ExchangePart& part, const ReceiveBox& box,
                                                   size_t index, const Membership& in,
                                                   Traffic& traffic) {
  absl::InlinedVector<const Tensor*, 8> sources;
  for (int peer : box.peers) {
    sources.push_back(&in.group->SourceOf(in.group->IndexOf(peer), in.number, index));
    DT_RETURN_IF_ERROR(CheckSource(collective, box, part.dst, *sources.back(), peer));
  }
  if (!AddPull(part, box, sources)) return absl::OkStatus();
  const int64_t messages = box.peers.size() - absl::c_count(box.peers, rank_);
  traffic.messages += messages;
  traffic.bytes += messages * box.elements() * SizeOf(sources[0]->dtype());
  return absl::OkStatus();
}

template <typename WorldType>
bool PullCommunicator<WorldType>::AddPull(const ExchangePart& part, const ReceiveBox& box,
                                          absl::Span<const Tensor* const> sources) {
  kernels::BoxMove& pull = pulls_.emplace_back(box, part.dst, sources, part.op, part.scale);
  if (!pull.is_done()) return true;
  pulls_.pop_back();
  return false;
}

// Launches all pulls together, so after an error none of them runs. Each member begins with another
// pull: if all read the same peer at the same time, they would compete for the same memory.
template <typename WorldType>
absl::Status PullCommunicator<WorldType>::LaunchPulls(const Membership& in) {
  if (pulls_.empty()) return absl::OkStatus();
  const size_t first = pulls_.size() * in.me / in.group->size();
  return kernels::MoveBoxes(device_, "Exchange", pulls_, first, WrittenBytes(in.parts));
}

template <typename WorldType>
absl::Status PullCommunicator<WorldType>::AwaitReaders(const Collective& collective,
                                                       const Membership& in) {
  Group& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (member == in.me || !group.ReadsFrom(member, in.me, in.number)) continue;
    DT_RETURN_IF_ERROR(
        world_.Await({rank_, group, member, ExchangeStage::kDone, in.number, collective.op}));
    if (has_events_) DT_RETURN_IF_ERROR(device_.Wait(group.done(member, in.number)));
  }
  return absl::OkStatus();
}

// Ends an exchange that failed. The caller may now free what peers are reading, so this waits until
// none is. That takes no longer than one read, since no member begins to read once the world has
// failed (World::BeginReading). A rank that posted and has not come back to read delays nobody.
template <typename WorldType>
absl::Status PullCommunicator<WorldType>::Withdraw(const Membership& in,
                                                   const absl::Status& reason) {
  const absl::Status failure = world_.Fail(rank_, reason);
  Group& group = *in.group;
  world_.EndReading(rank_, group).IgnoreError();  // before it waits: peers that failed wait for it
  for (int member = 0; member < group.size(); ++member) {
    if (member == in.me) continue;
    while (world_.reading(group.ranks()[member])) std::this_thread::yield();
    if (!has_events_ || !group.Reached(member, ExchangeStage::kDone, in.number)) continue;
    device_.Wait(group.done(member, in.number)).IgnoreError();
  }
  return failure;
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_PULL_COMMUNICATOR_INL_H_
