// MessageCommunicator: waits, and what ends one that leads nowhere.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

}  // namespace

absl::Status MessageCommunicator::Await(const Exchange& exchange, int peer,
                                        const std::function<bool()>& over) {
  constexpr microseconds kSlice(20000);
  std::chrono::duration<double> waited(0);
  while (!over()) {
    DT_RETURN_IF_ERROR(failure());
    const Clock::time_point start = Clock::now();
    DT_RETURN_IF_ERROR(Advance(kSlice));
    if (over()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(CheckPeer(exchange, peer));
    waited += std::min<std::chrono::duration<double>>(Clock::now() - start, 3 * kSlice);
    if (waited.count() < world_.timeout_seconds()) continue;
    return world_.Fail(
        peer, absl::DeadlineExceededError(absl::StrCat("silent for ", world_.timeout_seconds(),
                                                       " s: ", WaitText(exchange))));
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::Advance(microseconds longest) {
  transport_.Progress(longest);
  for (const auto& exchange : exchanges_) {
    DT_RETURN_IF_ERROR(TakeNotes(*exchange));
    for (Outgoing& outgoing : exchange->outgoing) {
      DT_RETURN_IF_ERROR(SendMore(*exchange, outgoing));
    }
  }
  return absl::OkStatus();
}

std::string MessageCommunicator::WaitText(const Exchange& exchange) const {
  return absl::StrCat("rank ", rank_, " waits for it in op \"", exchange.collective->op,
                      "\" (call ", exchange.number, " of ranks [",
                      absl::StrJoin(exchange.group->ranks, ", "), "])");
}

// Why `peer` will not do what is waited for.
absl::Status MessageCommunicator::CheckPeer(const Exchange& exchange, int peer) {
  DT_RETURN_IF_ERROR(failure());
  if (const absl::Status lost = transport_.lost(peer); !lost.ok()) {
    return world_.Fail(
        peer, absl::Status(lost.code(), absl::StrCat("its process is gone: ", lost.message(), " (",
                                                     WaitText(exchange), ")")));
  }
  const std::optional<absl::Status> returned =
      transport_.has_left(peer) ? world_.returned(peer) : std::nullopt;
  if (!returned) return absl::OkStatus();
  if (!returned->ok()) {
    return world_.Fail(peer, absl::Status(returned->code(), absl::StrCat(returned->message(), " (",
                                                                         WaitText(exchange), ")")));
  }
  return world_.Fail(peer, absl::AbortedError(absl::StrCat("returned while ", WaitText(exchange))));
}

absl::Status MessageCommunicator::Settle() {
  return device_.kind() == Device::Kind::kCpu ? absl::OkStatus() : device_.Synchronize();
}

}  // namespace dtensor
