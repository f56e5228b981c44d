#include "dtensor/runtime/comm/messages/message_communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/runtime/comm/call_summary.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/fingerprint.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using std::chrono::microseconds;

constexpr int64_t kLeastPieceBytes = 8;  // an element's, of the widest type
constexpr int64_t kMostInNote =
    MessageTransport::kMostNoteBytes / 2;  // the rest of a note is short
constexpr int64_t kMostUnasked = MessageTransport::kMostUnaskedBytes;

int64_t DefaultPiece(int size) {
  return std::clamp<int64_t>((int64_t{16} << 20) / (4 * size), 64 << 10, 1 << 20);
}

}  // namespace

MessageCommunicator::MessageCommunicator(int rank, int size, Device& device,
                                         MessageTransport& transport, WorldState& world,
                                         const MessageOptions& options)
    : rank_(rank),
      size_(size),
      device_(device),
      transport_(transport),
      world_(world),
      carrier_(options.carrier),
      piece_bytes_(options.piece_bytes > 0 ? std::max(options.piece_bytes, kLeastPieceBytes)
                                           : DefaultPiece(size)),
      note_bytes_(std::clamp<int64_t>(options.note_bytes, 0, kMostInNote)),
      eager_bytes_(
          std::min(options.eager_bytes < 0 ? piece_bytes_ : options.eager_bytes, kMostUnasked)),
      everyone_(size),
      lists_(rank) {
  std::iota(everyone_.begin(), everyone_.end(), 0);
}

MessageCommunicator::~MessageCommunicator() = default;

MessageCommunicator::Way MessageCommunicator::WayOf(int64_t bytes) const {
  if (bytes <= note_bytes_) return Way::kInNote;
  return bytes <= eager_bytes_ ? Way::kUnasked : Way::kAsked;
}

absl::Status MessageCommunicator::BeginExchange(const Collective& collective,
                                                absl::Span<const ExchangePart> parts) {
  if (absl::Status known = Usable(); !known.ok()) return InOp(known, rank_, collective);
  DT_RETURN_IF_ERROR(CheckExchange(collective, parts, rank_, size_, &device_));
  if (collective.group.size() > 1 && !parts.empty() && collective.boxes == nullptr) {
    return InvalidArgument({ExchangeLabel(collective),
                            "says nothing of what others receive (Collective::boxes), which ranks "
                            "that cannot read each other's memory have to know"});
  }
  // If anything fails from here on, peers may already know of this exchange.
  const absl::Status status = NoThrow([&] { return Start(collective, parts); });
  return status.ok() ? status : Abandon(collective, status);
}

absl::Status MessageCommunicator::Start(const Collective& collective,
                                        absl::Span<const ExchangePart> parts) {
  Group& group = GroupOf(collective.group);
  if (Exchange* const before = group.exchange; before != nullptr) {
    const Collective* const known = before->collective;
    const std::shared_ptr<const void> dropped = before->owner;
    const absl::Status status = Complete(*before);
    if (dropped == nullptr) finished_.emplace_back(known, status);
    DT_RETURN_IF_ERROR(failure());
  }
  DT_RETURN_IF_ERROR(Advance(microseconds(0)));  // for exchanges in flight
  auto exchange = std::make_unique<Exchange>();
  exchange->group = &group;
  exchange->collective = &collective;
  exchange->parts = parts;
  exchange->number = ++group.number;
  exchange->fingerprint = FingerprintOf(collective, parts.size());
  if (carrier_ != nullptr && !parts.empty()) exchange->begun = device_.Record();
  group.exchange = exchange.get();
  exchanges_.push_back(std::move(exchange));
  FindOutgoing(*group.exchange);
  DT_RETURN_IF_ERROR(TellCall(*group.exchange));
  if (ReceivesNothing(parts)) Count(collective, 0, 0);
  return TakeNotes(*group.exchange);  // they may have come before it began
}

absl::Status MessageCommunicator::FinishExchange(const Collective& collective) {
  if (Exchange* const exchange = Find(collective); exchange != nullptr) return Complete(*exchange);
  const auto known = absl::c_find_if(
      finished_, [&](const auto& finished) { return finished.first == &collective; });
  if (known == finished_.end()) return Usable();  // it never began
  const absl::Status status = std::move(known->second);
  finished_.erase(known);
  return status;
}

absl::Status MessageCommunicator::Complete(Exchange& exchange) {
  const Collective& collective = *exchange.collective;
  const absl::Status status = NoThrow([&] { return Perform(exchange); });
  if (!status.ok()) return Abandon(collective, status);
  Forget(exchange);
  return status;
}

// Fails the world, unless it has failed, and makes sure that the transport touches no memory any
// more.
absl::Status MessageCommunicator::Abandon(const Collective& collective, const absl::Status& why) {
  const absl::Status failure = Fail(why);
  transport_.Cancel();
  if (Exchange* const exchange = Find(collective); exchange != nullptr) Forget(*exchange);
  return InOp(failure, rank_, collective);
}

absl::Status MessageCommunicator::Perform(Exchange& exchange) {
  DT_RETURN_IF_ERROR(Usable());
  if (carrier_ != nullptr) return PerformCarried(exchange);
  // What is asked for holds up whatever the sender says next, which some other rank may need before
  // it makes its call. So it is asked for only when all have called. In a group of two, the peer's
  // call comes before what is asked for.
  const bool is_pair = exchange.outgoing.size() <= 1;
  if (is_pair) TellGo(exchange);
  DT_RETURN_IF_ERROR(CompareCalls(exchange));
  if (!is_pair) TellGo(exchange);
  DT_RETURN_IF_ERROR(ReceiveAll(exchange));
  for (const Outgoing& outgoing : exchange.outgoing) {
    DT_RETURN_IF_ERROR(
        Await(exchange, outgoing.peer, WaitStage::kReceive, [&] { return outgoing.sent(); }));
  }
  if (!ReceivesNothing(exchange.parts)) {
    Count(*exchange.collective, exchange.messages, exchange.bytes);
  }
  return absl::OkStatus();
}

void MessageCommunicator::DropExchange(const Collective& collective,
                                       std::shared_ptr<const void> owner) {
  Exchange* const exchange = Find(collective);
  if (exchange == nullptr) {
    std::erase_if(finished_, [&](const auto& known) { return known.first == &collective; });
  } else if (!failure().ok()) {  // none is in flight if the world is over
    transport_.Cancel();
    Forget(*exchange);
  } else {
    exchange->owner = std::move(owner);
  }
}

absl::Status MessageCommunicator::FinishDropped() {
  while (true) {
    const auto first = absl::c_find_if(
        exchanges_, [](const auto& exchange) { return exchange->owner != nullptr; });
    if (first == exchanges_.end()) return absl::OkStatus();
    const std::shared_ptr<const void> owner = (*first)->owner;
    DT_RETURN_IF_ERROR(Complete(**first));
  }
}

absl::Status MessageCommunicator::Barrier(absl::string_view what) {
  const Collective everybody = {.op = what, .group = everyone_, .counts_as_call = false};
  if (absl::Status known = Usable(); !known.ok()) return InOp(known, rank_, everybody);
  const absl::Status status = NoThrow([&] { return Start(everybody, {}); });
  return status.ok() ? FinishExchange(everybody) : Abandon(everybody, status);
}

absl::Status MessageCommunicator::Fail(const absl::Status& reason) {
  const absl::Status known = failure();
  if (known.ok()) return world_.Fail(rank_, reason);
  // What this rank reports of the failure says more.
  const size_t met = reason.message().find(known.message());
  return met == reason.message().npos ? known
                                      : absl::Status(known.code(), reason.message().substr(met));
}

absl::Status MessageCommunicator::Usable() const {
  const absl::Status known = failure();
  return !known.ok() || !ended_ ? known : absl::FailedPreconditionError("the world is over");
}

void MessageCommunicator::End() {
  ended_ = true;
  transport_.Cancel();
  if (carrier_ != nullptr) carrier_->End();
  while (!exchanges_.empty()) Forget(*exchanges_.front());
}

Delivery MessageCommunicator::delivery(const Collective& collective) const {
  const Exchange* const exchange = Find(collective);
  if (exchange == nullptr) return Delivery::kDone;  // a later exchange of its group has finished it
  if (carrier_ != nullptr) return Delivery::kInFinish;
  const bool sent =
      absl::c_all_of(exchange->outgoing, [](const Outgoing& out) { return out.sent(); });
  return sent && !transport_.is_sending() ? Delivery::kDone : Delivery::kInLaterCalls;
}

MessageCommunicator::Exchange* MessageCommunicator::Find(const Collective& collective) const {
  for (const auto& exchange : exchanges_) {
    if (exchange->collective == &collective) return exchange.get();
  }
  return nullptr;
}

void MessageCommunicator::Forget(Exchange& exchange) {
  exchange.group->exchange = nullptr;
  exchanges_.remove_if([&](const auto& known) { return known.get() == &exchange; });
}

MessageCommunicator::Group& MessageCommunicator::GroupOf(absl::Span<const int> ranks) {
  auto group = absl::c_find_if(groups_, [&](const Group& known) { return known.ranks == ranks; });
  if (group == groups_.end()) {
    ForgetIdleGroups();
    const uint64_t channel = FingerprintOf(ranks);
    group = groups_.insert(group, {{ranks.begin(), ranks.end()}, channel});
    if (const auto number = numbers_.extract(channel)) group->number = number.mapped();
  }
  groups_.splice(groups_.begin(), groups_, group);
  return groups_.front();
}

// Keeps the number of their exchanges, since other members may still know the groups.
void MessageCommunicator::ForgetIdleGroups() {
  size_t idle = 0;
  for (auto group = groups_.begin(); group != groups_.end();) {
    const bool is_idle =
        group->exchange == nullptr &&
        absl::c_all_of(group->notes, [](const auto& notes) { return notes.second.empty(); });
    if (is_idle && ++idle >= kMostIdle) {
      numbers_[group->channel] = group->number;
      group = groups_.erase(group);
    } else {
      ++group;
    }
  }
}

}  // namespace dtensor
