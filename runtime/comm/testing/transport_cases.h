// What every MessageTransport does: programs for its ranks, whether these are threads or processes.
#ifndef DTENSOR_RUNTIME_COMM_TESTING_TRANSPORT_CASES_H_
#define DTENSOR_RUNTIME_COMM_TESTING_TRANSPORT_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/runtime/comm/messages/message_transport.h"

namespace dtensor {

// A rank of kTransportCaseRanks.
struct TransportRank {
  const int rank;
  MessageTransport& transport;

  // Makes progress until `over`; false after a minute.
  bool Move(const std::function<bool()>& over) const;
  void MoveFor(double seconds) const;
  std::string AwaitNote(int peer, uint64_t channel) const;
  // Until all ranks have come here, and what they sent before is here.
  void Meet() const;
};
constexpr int kTransportCaseRanks = 3;

struct TransportCase {
  const char* name;
  // Says by GoogleTest what is wrong. The transport is new, and used for this case alone.
  void (*run)(const TransportRank&);
  // Frees memory under a transport that was cancelled.
  bool frees_memory = false;
};
std::vector<TransportCase> TransportCases();

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_TRANSPORT_CASES_H_
