#include "dtensor/runtime/comm/send_list.h"

#include <algorithm>

#include "dtensor/runtime/core/status.h"

namespace dtensor {

std::vector<SendBox> SendListOf(const Collective& collective, size_t parts, int rank) {
  DT_CHECK(collective.boxes != nullptr);
  std::vector<SendBox> sends;
  for (const int receiver : collective.group) {
    for (size_t part = 0; part < parts && receiver != rank; ++part) {
      const std::vector<ReceiveBox> boxes = collective.boxes->Receives(part, receiver);
      for (size_t i = 0; i < boxes.size(); ++i) {
        if (std::find(boxes[i].peers.begin(), boxes[i].peers.end(), rank) == boxes[i].peers.end())
          continue;
        sends.push_back({receiver, part, i, boxes[i].dims});
      }
    }
  }
  return sends;
}

absl::Span<const SendBox> SendLists::Of(const Collective& collective, size_t parts) {
  DT_CHECK(collective.boxes != nullptr);
  if (!collective.boxes->may_repeat()) return latest_ = SendListOf(collective, parts, rank_);
  const std::pair<uint64_t, size_t> key(collective.boxes->digest(), parts);
  if (const auto* known = lists_.Find(key); known != nullptr) return *known;
  lists_.Insert(key, SendListOf(collective, parts, rank_));
  return *lists_.Find(key);
}

}  // namespace dtensor
