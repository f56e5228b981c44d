#include "dtensor/runtime/comm/communicator.h"

#include <algorithm>

#include "dtensor/runtime/core/dtype.h"

namespace dtensor {

void Communicator::Count(const Collective& collective, absl::Span<const ExchangePart> parts) {
  if (collective.group.size() == 1) return;  // nothing between ranks
  Traffic& traffic = traffic_[TrafficKey(
      std::string(collective.axes.data(), collective.axes.size()), collective.kind)];
  traffic.calls += collective.counts_as_call;
  for (const ExchangePart& part : parts) {
    for (const Transfer& transfer : part.receives) {
      const int64_t others = std::count_if(transfer.peers.begin(), transfer.peers.end(),
                                           [this](int peer) { return peer != rank(); });
      traffic.messages += others;
      traffic.bytes +=
          others * transfer.elements() * SizeOf((part.src.defined() ? part.src : part.dst).dtype());
    }
  }
}

}  // namespace dtensor
