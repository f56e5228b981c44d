// MessageCommunicator: notes among the ranks of a group, and the check that all make the same call.
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/message_notes.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr size_t kMostTextBytes = MessageTransport::kMostNoteBytes / 4;

}  // namespace

absl::Status MessageCommunicator::TakeNotes(Exchange& exchange) {
  for (auto& [peer, incoming] : exchange.incoming) {
    std::deque<Note>& notes = exchange.group->notes[peer];
    while (const auto bytes = transport_.TakeNote(peer, exchange.group->channel)) {
      absl::StatusOr<Note> note = ReadNote(*bytes);
      if (!note.ok()) return world_.Fail(peer, note.status());
      notes.push_back(*std::move(note));
    }
    // Notes of later exchanges stay in the queue.
    while (!notes.empty() && notes.front().number <= exchange.number) {
      const Note note = std::move(notes.front());
      notes.pop_front();
      if (note.number == exchange.number) DT_RETURN_IF_ERROR(Heed(exchange, peer, note));
    }
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::Heed(Exchange& exchange, int peer, const Note& note) {
  Incoming& incoming = exchange.incoming.at(peer);
  if (note.kind == NoteKind::kGo) {
    for (Outgoing& outgoing : exchange.outgoing) outgoing.go |= outgoing.peer == peer;
    incoming.word = note.bytes;
  } else if (note.kind == NoteKind::kSummary) {
    incoming.summary = note.summary;
  } else if (incoming.called) {
    return world_.Fail(peer, InvalidArgument({"it made one call twice"}));
  } else {
    incoming.called = true;
    incoming.fingerprint = note.fingerprint;
    incoming.in_note = note.bytes;
  }
  return absl::OkStatus();
}

absl::Status MessageCommunicator::CompareCalls(Exchange& exchange) {
  for (const auto& [peer, incoming] : exchange.incoming) {
    DT_RETURN_IF_ERROR(
        Await(exchange, peer, WaitStage::kCall, [&, of = &incoming] { return of->called; }));
  }
  int other = -1;
  Note summary = {.kind = NoteKind::kSummary};
  for (const auto& [peer, incoming] : exchange.incoming) {
    if (incoming.fingerprint == exchange.fingerprint) continue;
    if (other < 0) {
      other = peer;
      summary.summary = SummaryOf(exchange);
    }
    Tell(exchange, peer, summary);
  }
  return other < 0 ? absl::OkStatus() : DisagreeWith(exchange, other, summary.summary);
}

CallSummary MessageCommunicator::SummaryOf(const Exchange& exchange) {
  const Collective& collective = *exchange.collective;
  CallSummary summary = dtensor::SummaryOf(collective.op, collective.kind, collective.digest,
                                           collective.description, exchange.parts.size());
  for (std::string* const text : {&summary.op, &summary.what}) {
    if (text->size() > kMostTextBytes) text->resize(kMostTextBytes);
  }
  return summary;
}

absl::Status MessageCommunicator::DisagreeWith(Exchange& exchange, int peer,
                                               const CallSummary& mine) {
  const Incoming& incoming = exchange.incoming.at(peer);
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(2);
  // A peer that learns of the failure while it waits for calls does not answer any more.
  while (!incoming.summary && Clock::now() < deadline && transport_.lost(peer).ok() &&
         failure().ok()) {
    DT_RETURN_IF_ERROR(Advance(microseconds(1000)));
  }
  const CallSummary unknown = {"?", "?", "it does not say", false};
  return Disagreement(exchange.number, exchange.group->ranks, rank_, mine, peer,
                      incoming.summary.value_or(unknown));
}

}  // namespace dtensor
