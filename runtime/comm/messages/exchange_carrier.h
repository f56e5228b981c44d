// ExchangeCarrier: moves the bytes of an exchange between devices, in the devices' stream order,
// while a MessageTransport moves only control messages. It is for libraries such as NCCL, whose
// calls are launched on a queue, for a whole exchange at once, and by all its ranks. Such calls
// cannot play the part of messages that a host sends and waits for one by one, when their receiver
// has asked.
//
// Before a carrier is called, MessageCommunicator has made sure that all ranks of the group are
// about to carry the same exchange. So nothing is launched that some rank does not know of, and
// exchanges of overlapping groups are carried in one order, since otherwise their hosts would wait
// for each other in a cycle, which is reported.
#ifndef DTENSOR_RUNTIME_COMM_MESSAGES_EXCHANGE_CARRIER_H_
#define DTENSOR_RUNTIME_COMM_MESSAGES_EXCHANGE_CARRIER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Belongs to one rank's thread.
class ExchangeCarrier {
 public:
  virtual ~ExchangeCarrier() = default;
  // The most that Carry allocates on the device; the same on all ranks.
  virtual int64_t staging_bytes() const = 0;

  // The text that every other rank of `group` receives from this one before they carry an exchange.
  virtual absl::StatusOr<std::string> WordFor(absl::Span<const int> group) = 0;

  struct Agreed {
    const Collective& collective;
    absl::Span<const ExchangePart> parts;
    DeviceEvent begun;                        // after what was launched before Begin
    const std::map<int, std::string>& words;  // from each other rank of the group
  };
  struct Carried {
    int64_t messages = 0, bytes = 0;  // received from others
  };
  // Launches the whole exchange behind `begun`, and returns. Later work of the device runs behind
  // the exchange, also after an error. Each rank of the group calls it for the same exchange.
  // Requires: at least one part, and a collective with boxes. Errors: those of the transport, the
  // world's failure.
  virtual absl::StatusOr<Carried> Carry(const Agreed& exchange) = 0;

  // The world is over on all ranks: nothing more is carried.
  virtual void End() = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_EXCHANGE_CARRIER_H_
