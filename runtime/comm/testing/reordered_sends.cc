#include "dtensor/runtime/comm/testing/reordered_sends.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace dtensor {

void ReorderedSends::Send(int peer, uint64_t channel, SentRows bytes, int& pending) {
  Hold(peer, {channel, std::move(bytes), &pending, /*unasked=*/false});
}

void ReorderedSends::SendUnasked(int peer, uint64_t channel, SentRows bytes, int& pending) {
  Hold(peer, {channel, std::move(bytes), &pending, /*unasked=*/true});
}

void ReorderedSends::Hold(int peer, Message message) {
  if (cancelled_) return;
  ++*message.pending;
  held_[peer].push_back(std::move(message));
}

void ReorderedSends::EndNewest(Messages& held) {
  const auto newest = std::find_if(held.rbegin(), held.rend(), [](const Message& message) {
    return message.pending != nullptr;
  });
  if (newest == held.rend()) return;
  for (const absl::Span<const std::byte> row : newest->bytes.rows()) {
    newest->copy.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  --*std::exchange(newest->pending, nullptr);
}

// The oldest ones that are done, as the peer is to have them in their order.
void ReorderedSends::PassOn(int peer, Messages& held) {
  while (!held.empty() && held.front().pending == nullptr) {
    sent_.splice(sent_.end(), held, held.begin());
    Message& message = sent_.back();
    const SentRows bytes(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(message.copy.data()), message.copy.size()));
    if (message.unasked) {
      inner_.SendUnasked(peer, message.channel, bytes, message.sending);
    } else {
      inner_.Send(peer, message.channel, bytes, message.sending);
    }
  }
}

void ReorderedSends::Progress(std::chrono::microseconds longest) {
  for (auto& [peer, held] : held_) {
    EndNewest(held);
    PassOn(peer, held);
  }
  std::erase_if(held_, [](const auto& held) { return held.second.empty(); });
  inner_.Progress(held_.empty() ? longest : std::chrono::microseconds(0));
  sent_.remove_if([](const Message& message) { return message.sending == 0; });
}

void ReorderedSends::Leave() {
  for (auto& [peer, held] : held_) {
    for (size_t left = held.size(); left > 0; --left) EndNewest(held);
    PassOn(peer, held);
  }
  held_.clear();
  inner_.Leave();
}

void ReorderedSends::Cancel() {
  cancelled_ = true;
  held_.clear();
  inner_.Cancel();
}

}  // namespace dtensor
