#include "dtensor/runtime/comm/communicator.h"

#include <utility>

#include "dtensor/runtime/core/no_throw.h"

namespace dtensor {

absl::Status Communicator::Exchange(const Collective& collective,
                                    absl::Span<const ExchangePart> parts) {
  absl::Status status = BeginObserved(collective, parts, /*waits=*/true);
  return status.ok() ? Finish(collective) : status;
}

absl::Status Communicator::Begin(const Collective& collective,
                                 absl::Span<const ExchangePart> parts) {
  return BeginObserved(collective, parts, /*waits=*/false);
}

absl::Status Communicator::BeginObserved(const Collective& collective,
                                         absl::Span<const ExchangePart> parts, bool waits) {
  ExchangeObserver* const observer = observer_;
  if (observer == nullptr) return BeginExchange(collective, parts);
  observer->Begins(collective, waits);
  absl::Status status = BeginExchange(collective, parts);
  if (!status.ok()) observer->Finished(collective);
  return status;
}

absl::Status Communicator::Finish(const Collective& collective) {
  ExchangeObserver* const observer = observer_;
  if (observer == nullptr) return FinishExchange(collective);
  // The observer may throw if memory runs out. Then the world must fail, since peers must not go on
  // reading what the caller frees after an error.
  const absl::Status told = NoThrow([&] {
    observer->Finishes(collective);
    return absl::OkStatus();
  });
  if (!told.ok()) Fail(told).IgnoreError();
  absl::Status status = FinishExchange(collective);
  observer->Finished(collective);
  return status;
}

void Communicator::Drop(const Collective& collective, std::shared_ptr<const void> owner) {
  if (observer_ != nullptr) observer_->Drops(collective);
  DropExchange(collective, std::move(owner));
}

void Communicator::Count(const Collective& collective, int64_t messages, int64_t bytes) {
  if (collective.group.size() == 1) return;  // nothing between ranks
  if (!collective.counts_as_call && messages == 0) return;
  const CommunicatorTraffic more = {collective.counts_as_call, messages, bytes};
  CommunicatorTraffic& traffic = counter_->traffic_[TrafficKey(
      std::string(collective.axes.data(), collective.axes.size()), collective.kind)];
  traffic.calls += more.calls;
  traffic.messages += more.messages;
  traffic.bytes += more.bytes;
  if (counter_->observer_ != nullptr) counter_->observer_->Counted(collective, more);
}

}  // namespace dtensor
