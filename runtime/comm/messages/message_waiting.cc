// MessageCommunicator: waits, and what ends a wait that cannot succeed.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/comm/wait_chain.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using Seconds = std::chrono::duration<double>;

// The time between the probes that a long wait sends.
Seconds ProbeInterval(Seconds timeout) { return std::min(Seconds(1), timeout / 4); }

std::vector<WaitText> Texts(const std::vector<RankWait>& waits) {
  return {waits.begin(), waits.end()};
}

}  // namespace

absl::Status MessageCommunicator::Await(const Exchange& exchange, int peer, WaitStage stage,
                                        const std::function<bool()>& over) {
  constexpr microseconds kSlice(20000);
  if (over()) return absl::OkStatus();
  Wait wait = {++waits_, &exchange, peer, stage};
  const Seconds timeout(world_.timeout_seconds()), interval = ProbeInterval(timeout);
  uint64_t moved = transport_.moved(peer);
  for (Seconds next_probe = interval; wait.waited < timeout;) {
    DT_RETURN_IF_ERROR(failure());
    const Clock::time_point start = Clock::now();
    DT_RETURN_IF_ERROR(Advance(kSlice));
    if (over()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(CheckPeer(exchange, peer));
    DT_RETURN_IF_ERROR(TakeWaitNotes(wait));
    wait.waited += std::min<Seconds>(Clock::now() - start, 3 * kSlice);
    if (const uint64_t now_moved = transport_.moved(peer); now_moved != moved) {
      moved = now_moved;  // the peer is slow, but not silent
      wait.waited = wait.chain_came = Seconds(0);
      wait.chain.clear();
      next_probe = interval;
    }
    if (wait.waited < next_probe) continue;
    SendProbe(wait);
    next_probe += interval;
  }
  return TimeOut(wait);
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

bool MessageCommunicator::Progress() {
  if (ended_ || (exchanges_.empty() && !transport_.is_sending())) return false;
  if (const absl::Status status = Advance(microseconds(0)); !status.ok())
    Fail(status).IgnoreError();
  return transport_.is_sending() || absl::c_any_of(exchanges_, [](const auto& exchange) {
           return !absl::c_all_of(exchange->outgoing,
                                  [](const Outgoing& out) { return out.sent(); });
         });
}

std::string MessageCommunicator::CallOf(const Exchange& exchange) {
  return CallText(exchange.collective->op, exchange.number, exchange.group->ranks);
}

// Why `peer` will not do what is waited for.
absl::Status MessageCommunicator::CheckPeer(const Exchange& exchange, int peer) {
  DT_RETURN_IF_ERROR(failure());
  if (const absl::Status lost = transport_.lost(peer); !lost.ok()) {
    const absl::string_view gone = absl::IsUnavailable(lost) ? "its process is gone: " : "";
    return world_.Fail(
        peer, absl::Status(lost.code(), absl::StrCat(gone, lost.message(), " (",
                                                     WaiterText(rank_, CallOf(exchange)), ")")));
  }
  const std::optional<absl::Status> returned =
      transport_.has_left(peer) ? world_.returned(peer) : std::nullopt;
  if (!returned) return absl::OkStatus();
  return world_.Fail(peer, ReturnedWhile(*returned, rank_, CallOf(exchange)));
}

// --- Which rank waits for which (wait_notes.h).

RankWait MessageCommunicator::Described(const Wait& wait) const {
  const Exchange& exchange = *wait.exchange;
  WaitStage stage = wait.stage;
  for (const Outgoing& outgoing : exchange.outgoing) {
    if (outgoing.peer == wait.peer && outgoing.go && stage == WaitStage::kReceive) {
      stage = WaitStage::kBytes;
    }
  }
  return {{rank_, wait.peer, CallOf(exchange)}, stage, exchange.group->channel, exchange.number};
}

void MessageCommunicator::SendProbe(const Wait& wait) {
  transport_.SendNote(wait.peer, kWaitChannel,
                      Encode(WaitNote{WaitNoteKind::kProbe, wait.id, {Described(wait)}}));
}

absl::Status MessageCommunicator::TakeWaitNotes(Wait& wait) {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    while (const auto bytes = transport_.TakeNote(peer, kWaitChannel)) {
      absl::StatusOr<WaitNote> note = ReadWaitNote(*bytes, size_);
      if (!note.ok()) return world_.Fail(peer, note.status());
      if (note->kind == WaitNoteKind::kProbe) {
        DT_RETURN_IF_ERROR(HeedProbe(wait, *std::move(note)));
      } else if (note->id == wait.id && note->waits.front().rank == rank_) {
        wait.chain = std::move(note->waits);
        wait.chain_came = wait.waited;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::HeedProbe(const Wait& wait, WaitNote note) {
  const RankWait mine = Described(wait);
  if (note.waits.back().peer != rank_ || HasDone(note.waits.back())) return absl::OkStatus();
  const int first = note.waits.front().rank;
  if (first == rank_ && note.id == wait.id && mine.stage != WaitStage::kBytes) {
    return Fail(TroubleOf(Texts(note.waits), /*timed_out=*/false, 0));
  }
  const bool has_met =
      absl::c_any_of(note.waits, [&](const RankWait& known) { return known.rank == rank_; });
  if (has_met || note.waits.size() == WaitNote::kMostWaits) return absl::OkStatus();
  note.waits.push_back(mine);
  if (mine.stage != WaitStage::kBytes) {
    transport_.SendNote(wait.peer, kWaitChannel, Encode(note));
  }
  note.kind = WaitNoteKind::kChain;
  if (wait.peer != first) transport_.SendNote(first, kWaitChannel, Encode(note));
  return absl::OkStatus();
}

// Whether this rank has done what the other rank's `wait` for it needs.
bool MessageCommunicator::HasDone(const RankWait& wait) const {
  if (wait.stage == WaitStage::kBytes) return true;
  const auto group =
      absl::c_find_if(groups_, [&](const Group& known) { return known.channel == wait.channel; });
  if (group == groups_.end()) {
    const auto number = numbers_.find(wait.channel);
    return number != numbers_.end() && number->second >= wait.number;
  }
  if (group->number != wait.number) return group->number > wait.number;
  return wait.stage == WaitStage::kCall || group->exchange == nullptr || group->exchange->receives;
}

// A rank that itself waits is not the silent one; that is the rank at the end of the chain. It may
// be a rank of the chain, if bytes in flight do not arrive: that is not a cycle of calls.
absl::Status MessageCommunicator::TimeOut(const Wait& wait) {
  const Seconds timeout(world_.timeout_seconds());
  const bool is_known =
      !wait.chain.empty() && wait.waited - wait.chain_came < 2 * ProbeInterval(timeout);
  const std::vector<WaitText> chain =
      is_known ? Texts(wait.chain) : std::vector<WaitText>{Described(wait)};
  return world_.Fail(chain.back().peer, SilenceOf(chain, timeout.count()));
}

absl::Status MessageCommunicator::Settle() {
  return device_.kind() == Device::Kind::kCpu ? absl::OkStatus() : device_.Synchronize();
}

}  // namespace dtensor
