#include "dtensor/runtime/comm/process/host_communicator.h"

#include <algorithm>
#include <list>
#include <utility>

#include "dtensor/runtime/core/status.h"

namespace dtensor {

HostCommunicator::HostCommunicator(const HostRanks& host, Communicator& shared,
                                   Communicator& messages)
    : host_(host), shared_(shared), messages_(messages) {
  CountFor(shared_);
  CountFor(messages_);
}

Communicator& HostCommunicator::For(absl::Span<const int> group) const {
  const bool here = std::all_of(group.begin(), group.end(),
                                [&](int rank) { return host_.Find(rank) != nullptr; });
  return here ? shared_ : messages_;
}

Delivery HostCommunicator::delivery(const Collective& collective) const {
  return For(collective.group).delivery(collective);
}

absl::Status HostCommunicator::BeginExchange(const Collective& collective,
                                             absl::Span<const ExchangePart> parts) {
  DT_RETURN_IF_ERROR(FinishDropped(collective.group));
  std::list<Begun> begun = {{&collective, nullptr}};  // before peers know of it, as it may throw
  DT_RETURN_IF_ERROR(For(collective.group).Begin(collective, parts));
  begun_.splice(begun_.end(), begun);
  return absl::OkStatus();
}

absl::Status HostCommunicator::FinishExchange(const Collective& collective) {
  begun_.remove_if([&](const Begun& begun) { return begun.collective == &collective; });
  return For(collective.group).Finish(collective);
}

void HostCommunicator::DropExchange(const Collective& collective,
                                    std::shared_ptr<const void> owner) {
  const auto begun = std::find_if(begun_.begin(), begun_.end(), [&](const Begun& known) {
    return known.collective == &collective;
  });
  if (begun == begun_.end() || ended_) {
    For(collective.group).Drop(collective, std::move(owner));
  } else {
    begun->owner = std::move(owner);
  }
}

// A dropped exchange of a group is over when the group's next one begins.
absl::Status HostCommunicator::FinishDropped(absl::Span<const int> group) {
  const auto before = std::find_if(begun_.begin(), begun_.end(), [&](const Begun& begun) {
    return begun.owner != nullptr && begun.collective->group == group;
  });
  if (before == begun_.end()) return absl::OkStatus();
  const Begun dropped = *before;
  FinishExchange(*dropped.collective).IgnoreError();
  return failure();
}

absl::Status HostCommunicator::FinishDropped() {
  while (true) {
    const auto first = std::find_if(begun_.begin(), begun_.end(),
                                    [](const Begun& begun) { return begun.owner != nullptr; });
    if (first == begun_.end()) return absl::OkStatus();
    const Begun dropped = *first;
    DT_RETURN_IF_ERROR(FinishExchange(*dropped.collective));
  }
}

void HostCommunicator::End() {
  ended_ = true;
  for (const Begun& begun : begun_) {
    if (begun.owner != nullptr) For(begun.collective->group).Drop(*begun.collective, begun.owner);
  }
  begun_.clear();
}

}  // namespace dtensor
