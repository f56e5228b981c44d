// MessageCommunicator: an exchange whose bytes an ExchangeCarrier moves.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/exchange_check.h"
#include "dtensor/runtime/comm/messages/exchange_carrier.h"
#include "dtensor/runtime/comm/messages/message_exchange.h"
#include "dtensor/runtime/comm/messages/wait_notes.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

// Every rank tells every other that it is there, and launches nothing before it has heard the same
// from all: an exchange that was launched would never end if some rank does not take part.
absl::Status MessageCommunicator::PerformCarried(Exchange& exchange) {
  const bool moves = !exchange.parts.empty() && exchange.group->ranks.size() > 1;
  if (moves) {
    exchange.receives = true;
    DT_ASSIGN_OR_RETURN(const std::string word, carrier_->WordFor(exchange.group->ranks));
    for (const auto& [peer, incoming] : exchange.incoming) {
      Tell(exchange, peer, {.kind = NoteKind::kGo, .bytes = word});
    }
  }
  DT_RETURN_IF_ERROR(CompareCalls(exchange));
  std::map<int, std::string> words;
  for (const Outgoing& outgoing : exchange.outgoing) {
    if (!moves) break;
    DT_RETURN_IF_ERROR(
        Await(exchange, outgoing.peer, WaitStage::kReceive, [&] { return outgoing.go; }));
    words[outgoing.peer] = std::move(exchange.incoming.at(outgoing.peer).word);
  }
  ExchangeCarrier::Carried carried;
  if (moves) {
    DT_ASSIGN_OR_RETURN(carried, carrier_->Carry({*exchange.collective, exchange.parts,
                                                  std::move(exchange.begun), words}));
  } else if (!exchange.parts.empty()) {  // a group of this rank alone
    for (const ExchangePart& part : exchange.parts) {
      for (const ReceiveBox& box : part.receives) DT_RETURN_IF_ERROR(MoveOwn(part, box));
    }
  }
  if (!ReceivesNothing(exchange.parts)) {
    Count(*exchange.collective, carried.messages, carried.bytes);
  }
  return absl::OkStatus();
}

}  // namespace dtensor
