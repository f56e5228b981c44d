#include "dtensor/runtime/comm/local/local_communicator.h"

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

CallSummary SummaryOf(const RankGroup::Details& details) {
  return dtensor::SummaryOf(details.op, details.kind, details.digest, details.description,
                            details.parts);
}

}  // namespace

LocalCommunicator::LocalCommunicator(World& world, int rank, Device& device, uint64_t seed,
                                     int max_delay_us)
    : world_(world),
      rank_(rank),
      device_(device),
      has_events_(device.kind() != Device::Kind::kCpu),
      max_delay_us_(max_delay_us),
      random_(seed + rank),
      everyone_(world.size()) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

absl::Status LocalCommunicator::Begin(const Collective& collective,
                                      absl::Span<const ExchangePart> parts) {
  if (world_.failed()) return world_.failure();
  DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size(), &device_));
  // Whatever goes wrong from here on, peers may have heard of this exchange.
  const absl::Status status = NoThrow([&] { return Start(collective, parts); });
  return status.ok() ? status : world_.Fail(rank_, status);
}

absl::Status LocalCommunicator::Finish(const Collective& collective) {
  for (Membership& in : memberships_) {
    if (in.collective == &collective) return Complete(in);
  }
  for (auto it = finished_.begin(); it != finished_.end(); ++it) {
    if (it->first != &collective) continue;
    const absl::Status status = std::move(it->second);
    finished_.erase(it);
    return status;
  }
  return world_.failure();  // it never began
}

void LocalCommunicator::Drop(const Collective& collective, std::shared_ptr<const void> owner) {
  for (Membership& in : memberships_) {
    if (in.collective != &collective) continue;
    if (ended_) {
      in.collective = nullptr;
    } else {
      in.owner = std::move(owner);
    }
    return;
  }
  std::erase_if(finished_, [&](const auto& known) { return known.first == &collective; });
}

absl::Status LocalCommunicator::FinishDropped() {
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

void LocalCommunicator::End() {
  ended_ = true;
  for (Membership& in : memberships_) {
    if (in.owner == nullptr) continue;
    in.collective = nullptr;
    in.owner = nullptr;
  }
}

absl::Status LocalCommunicator::Barrier(absl::string_view what) {
  if (world_.failed()) return world_.failure();
  return Meet({.op = what, .group = everyone_, .counts_as_call = false}, {});
}

absl::Status LocalCommunicator::Meet(const Collective& collective,
                                     absl::Span<const ExchangePart> parts) {
  absl::Status status = Start(collective, parts);
  return status.ok() ? Finish(collective) : status;
}

absl::Status LocalCommunicator::Start(const Collective& collective,
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
  ++in.number;
  Post(collective, parts, in);
  in.collective = &collective;
  in.parts = parts;
  in.begun = ++begun_;
  return absl::OkStatus();
}

absl::Status LocalCommunicator::Complete(Membership& in) {
  const Collective& collective = *in.collective;
  in.collective = nullptr;
  absl::Status status = NoThrow([&] { return Perform(collective, in); });
  return status.ok() ? status : Withdraw(in, status);
}

absl::Status LocalCommunicator::Perform(const Collective& collective, const Membership& in) {
  DT_RETURN_IF_ERROR(AwaitPosts(collective, in));
  world_.BeginReading(rank_);  // until Withdraw() if anything here fails
  if (world_.failed()) return world_.failure();
  DT_RETURN_IF_ERROR(CompareCalls(in));
  DT_RETURN_IF_ERROR(PullFromPeers(collective, in.parts, in));
  world_.EndReading(rank_);
  return AwaitReaders(collective, in);
}

void LocalCommunicator::SleepAtRandom() {
  std::uniform_int_distribution<int> delay_us(0, max_delay_us_);
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random_)));
}

LocalCommunicator::Membership& LocalCommunicator::MembershipOf(absl::Span<const int> ranks) {
  // The same group again, or one of a few.
  for (size_t i = 0; i < memberships_.size(); ++i) {
    const size_t at = (last_membership_ + i) % memberships_.size();
    if (memberships_[at].group->ranks() != ranks) continue;
    memberships_[at].use = ++uses_;
    return memberships_[last_membership_ = at];
  }
  return NewMembership(ranks);
}

// Takes the place of the idle one that was used least recently, once there are enough.
LocalCommunicator::Membership& LocalCommunicator::NewMembership(absl::Span<const int> ranks) {
  std::shared_ptr<RankGroup> group = world_.GroupOf(ranks);
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

void LocalCommunicator::Post(const Collective& collective, absl::Span<const ExchangePart> parts,
                             const Membership& in) {
  RankGroup::Details& details = in.group->details(in.me, in.number);
  details.op.assign(collective.op.data(), collective.op.size());
  details.kind = collective.kind;
  details.digest = collective.digest;
  details.description = collective.description;
  details.parts = parts.size();
  if (has_events_) details.ready = device_.Record();

  RankGroup::Post& post = in.group->post(in.me, in.number);
  post.call = absl::HashOf(collective.op, collective.kind, collective.digest, parts.size());
  post.parts = parts.data();
  post.reads = 0;
  for (const ExchangePart& part : parts) {
    for (const ReceiveBox& box : part.receives) {
      for (int peer : box.peers) post.reads |= RankGroup::ReadBit(in.group->IndexOf(peer));
    }
  }
  in.group->Publish(in.me, RankGroup::kPosted, in.number);
}

absl::Status LocalCommunicator::AwaitPosts(const Collective& collective, const Membership& in) {
  for (int member = 0; member < in.group->size(); ++member) {
    DT_RETURN_IF_ERROR(
        world_.Await({rank_, *in.group, member, RankGroup::kPosted, in.number, collective.op}));
  }
  return absl::OkStatus();
}

absl::Status LocalCommunicator::CompareCalls(const Membership& in) const {
  RankGroup& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (group.post(member, in.number).call == group.post(in.me, in.number).call) continue;
    return Disagreement(in.number, group.ranks(), rank_, SummaryOf(group.details(in.me, in.number)),
                        group.ranks()[member], SummaryOf(group.details(member, in.number)));
  }
  return absl::OkStatus();
}

absl::Status LocalCommunicator::PullFromPeers(const Collective& collective,
                                              absl::Span<const ExchangePart> parts,
                                              const Membership& in) {
  pulls_.clear();
  Traffic traffic;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const ReceiveBox& box : parts[i].receives) {
      DT_RETURN_IF_ERROR(PlanPull(collective, parts[i], box, i, in, traffic));
    }
  }
  RankGroup& group = *in.group;
  for (int member = 0; has_events_ && member < group.size(); ++member) {
    if (member == in.me || !group.ReadsFrom(in.me, member, in.number)) continue;
    DT_RETURN_IF_ERROR(device_.Wait(group.details(member, in.number).ready));
  }
  DT_RETURN_IF_ERROR(LaunchPulls(in));
  if (has_events_) group.details(in.me, in.number).done = device_.Record();
  group.Publish(in.me, RankGroup::kDone, in.number);
  Count(collective, traffic.messages, traffic.bytes);  // peers need not wait for it
  return absl::OkStatus();
}

absl::Status LocalCommunicator::PlanPull(const Collective& collective, const ExchangePart& part,
                                         const ReceiveBox& box, size_t index, const Membership& in,
                                         Traffic& traffic) {
  absl::InlinedVector<const Tensor*, 8> sources;
  for (int peer : box.peers) {
    const RankGroup::Post& post = in.group->post(in.group->IndexOf(peer), in.number);
    sources.push_back(&post.parts[index].src);
    DT_RETURN_IF_ERROR(CheckSource(collective, box, part.dst, *sources.back(), peer));
  }
  kernels::BoxMove pull(box, part.dst, sources, part.op, part.scale);
  if (pull.is_done()) return absl::OkStatus();
  const int64_t messages = box.peers.size() - absl::c_count(box.peers, rank_);
  traffic.messages += messages;
  traffic.bytes += messages * box.elements() * SizeOf(pull.in);
  pulls_.push_back(std::move(pull));
  return absl::OkStatus();
}

// One launch for all, so that an error means that none runs. Each member begins elsewhere: were all
// to read the same peer at the same time, they would wait for the same memory.
absl::Status LocalCommunicator::LaunchPulls(const Membership& in) {
  if (pulls_.empty()) return absl::OkStatus();
  const size_t first = pulls_.size() * in.me / in.group->size();
  return kernels::MoveBoxes(device_, "Exchange", pulls_, first);
}

absl::Status LocalCommunicator::AwaitReaders(const Collective& collective, const Membership& in) {
  RankGroup& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (member == in.me || !group.ReadsFrom(member, in.me, in.number)) continue;
    DT_RETURN_IF_ERROR(
        world_.Await({rank_, group, member, RankGroup::kDone, in.number, collective.op}));
    if (has_events_) DT_RETURN_IF_ERROR(device_.Wait(group.details(member, in.number).done));
  }
  return absl::OkStatus();
}

// Ends an exchange that failed. The caller may now free what peers are reading, so this waits until
// none is, which takes no longer than a read does: no member begins one once the world has failed
// (World::BeginReading). A rank that posted and has not come back to read holds nobody up.
absl::Status LocalCommunicator::Withdraw(const Membership& in, const absl::Status& reason) {
  const absl::Status failure = world_.Fail(rank_, reason);
  world_.EndReading(rank_);  // before it waits: peers that failed wait for it
  RankGroup& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (member == in.me) continue;
    while (world_.reading(group.ranks()[member])) std::this_thread::yield();
    if (!has_events_ || !group.Reached(member, RankGroup::kDone, in.number)) continue;
    device_.Wait(group.details(member, in.number).done).IgnoreError();
  }
  return failure;
}

}  // namespace dtensor
