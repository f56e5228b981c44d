#include "dtensor/runtime/comm/communicator.h"

namespace dtensor {

void Communicator::Count(const Collective& collective, int64_t messages, int64_t bytes) {
  if (collective.group.size() == 1) return;  // nothing between ranks
  if (!collective.counts_as_call && messages == 0) return;
  CommunicatorTraffic& traffic = (*counted_)[TrafficKey(
      std::string(collective.axes.data(), collective.axes.size()), collective.kind)];
  traffic.calls += collective.counts_as_call;
  traffic.messages += messages;
  traffic.bytes += bytes;
}

}  // namespace dtensor
