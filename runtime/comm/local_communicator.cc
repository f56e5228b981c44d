#include "dtensor/runtime/comm/local_communicator.h"

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// What a member says it is doing, for the error about two that disagree.
std::string Describe(int rank, const RankGroup::Details& details) {
  return absl::StrCat("rank ", rank, " makes op \"", details.op, "\" (", ToString(details.kind),
                      ", ", details.parts, " tensors, digest ", absl::Hex(details.digest), ")");
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
  Count(collective, parts);
  return Start(collective, parts);
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

absl::Status LocalCommunicator::Barrier(absl::string_view what) {
  if (world_.failed()) return world_.failure();
  return Meet({.op = what, .group = everyone_}, {});
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
    finished_.emplace_back(before, Complete(in));
    if (world_.failed()) return world_.failure();
  }
  ++in.number;
  in.collective = &collective;
  in.parts = parts;
  Post(collective, parts, in);
  return absl::OkStatus();
}

absl::Status LocalCommunicator::Complete(Membership& in) {
  const Collective& collective = *in.collective;
  in.collective = nullptr;
  absl::Status status = AwaitPosts(collective, in);
  if (status.ok()) status = CompareCalls(in);
  if (status.ok()) status = PullFromPeers(collective, in.parts, in);
  if (status.ok()) status = AwaitReaders(collective, in);
  return status.ok() ? status : Withdraw(in, status);
}

void LocalCommunicator::SleepAtRandom() {
  std::uniform_int_distribution<int> delay_us(0, max_delay_us_);
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us(random_)));
}

LocalCommunicator::Membership& LocalCommunicator::MembershipOf(absl::Span<const int> ranks) {
  // The same group again, or one of a few.
  for (size_t i = 0; i < memberships_.size(); ++i) {
    const size_t at = (last_membership_ + i) % memberships_.size();
    if (memberships_[at].group->ranks() == ranks) return memberships_[last_membership_ = at];
  }
  RankGroup& group = world_.GroupOf(ranks);
  last_membership_ = memberships_.size();
  return memberships_.emplace_back(Membership{&group, group.IndexOf(rank_), 0});
}

void LocalCommunicator::Post(const Collective& collective, absl::Span<const ExchangePart> parts,
                             const Membership& in) {
  RankGroup::Details& details = in.group->details(in.me, in.number);
  details.op.assign(collective.op.data(), collective.op.size());
  details.kind = collective.kind;
  details.digest = collective.digest;
  details.parts = parts.size();
  if (has_events_) details.ready = device_.Record();

  RankGroup::Post& post = in.group->post(in.me, in.number);
  post.call = absl::HashOf(collective.op, collective.kind, collective.digest, parts.size());
  post.parts = parts.data();
  post.reads = 0;
  for (const ExchangePart& part : parts) {
    for (const Transfer& transfer : part.receives) {
      for (int peer : transfer.peers) post.reads |= RankGroup::ReadBit(in.group->IndexOf(peer));
    }
  }
  in.group->Publish(in.me, RankGroup::kPosted, in.number);
}

absl::Status LocalCommunicator::AwaitPosts(const Collective& collective, const Membership& in) {
  for (int member = 0; member < in.group->size(); ++member) {
    DT_RETURN_IF_ERROR(
        world_.Await({rank_, *in.group, member, RankGroup::kPosted, in.number, collective.op}));
  }
  // After this rank's own post: see Withdraw().
  return world_.failed() ? world_.failure() : absl::OkStatus();
}

absl::Status LocalCommunicator::CompareCalls(const Membership& in) const {
  RankGroup& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (group.post(member, in.number).call == group.post(in.me, in.number).call) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree about call ", in.number, " of ranks [", absl::StrJoin(group.ranks(), ", "),
        "]: ", Describe(rank_, group.details(in.me, in.number)), " where ",
        Describe(group.ranks()[member], group.details(member, in.number)),
        "; all ranks of a group must make the same calls in the same order"));
  }
  return absl::OkStatus();
}

absl::Status LocalCommunicator::PullFromPeers(const Collective& collective,
                                              absl::Span<const ExchangePart> parts,
                                              const Membership& in) {
  pulls_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const Transfer& transfer : parts[i].receives) {
      DT_RETURN_IF_ERROR(PlanPull(collective, parts[i], transfer, i, in));
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
  return absl::OkStatus();
}

absl::Status LocalCommunicator::PlanPull(const Collective& collective, const ExchangePart& part,
                                         const Transfer& transfer, size_t index,
                                         const Membership& in) {
  absl::InlinedVector<const Tensor*, 8> sources;
  for (int peer : transfer.peers) {
    const RankGroup::Post& post = in.group->post(in.group->IndexOf(peer), in.number);
    sources.push_back(&post.parts[index].src);
    DT_RETURN_IF_ERROR(CheckSource(collective, transfer, part.dst, *sources.back(), peer));
  }
  Pull pull{BoxLoop(transfer, part.dst, sources), sources[0]->dtype(), part.dst.dtype(), part.op,
            part.scale};
  if (pull.loop.bytes() == 0 || (pull.scale == 1 && pull.loop.in_place())) return absl::OkStatus();
  pulls_.push_back(std::move(pull));
  return absl::OkStatus();
}

// One launch for all, so that an error means that none runs. Each member begins elsewhere: were all
// to read the same peer at the same time, they would wait for the same memory.
absl::Status LocalCommunicator::LaunchPulls(const Membership& in) {
  if (pulls_.empty()) return absl::OkStatus();
  const size_t first = pulls_.size() * in.me / in.group->size();
  if (!has_events_) return device_.Launch("Exchange", [&] { RunPulls(pulls_, first); });
  return device_.Launch("Exchange", [pulls = pulls_, first] { RunPulls(pulls, first); });
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
// none is, which takes no longer than the reads do: no member begins to read once the world has
// failed. A member posts, and then looks for a failure before it reads; this rank makes the failure
// known, and then looks for posts. All of that is sequentially consistent, so one of the two sees
// the other: either the member does not read, or this rank sees its post, and waits until it is
// done or has withdrawn too.
absl::Status LocalCommunicator::Withdraw(const Membership& in, const absl::Status& reason) {
  const absl::Status failure = world_.Fail(rank_, reason);
  world_.Retire(rank_);
  RankGroup& group = *in.group;
  for (int member = 0; member < group.size(); ++member) {
    if (member == in.me || !group.Reached(member, RankGroup::kPosted, in.number)) continue;
    while (!group.Reached(member, RankGroup::kDone, in.number) &&
           !world_.retired(group.ranks()[member])) {
      std::this_thread::yield();
    }
    if (!has_events_ || !group.Reached(member, RankGroup::kDone, in.number)) continue;
    device_.Wait(group.details(member, in.number).done).IgnoreError();
  }
  return failure;
}

}  // namespace dtensor
