// ExchangeCarrier: moves the bytes of an exchange between devices, in the devices' own order, where
// a MessageTransport has words alone. For libraries whose calls are launched on a queue, all of an
// exchange at once, and by all its ranks (NCCL): messages that a host sends and waits for one by
// one, when their receiver has asked, are not what such calls are.
//
// MessageCommunicator has seen before that all ranks of the group are about to carry the same
// exchange, so nothing is launched of which some rank knows nothing; and that they carry exchanges
// of overlapping groups in one order, for else their hosts would wait for each other in a cycle.
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

// Of one rank's thread.
class ExchangeCarrier {
 public:
  virtual ~ExchangeCarrier() = default;
  // The most that Carry allocates on the device: alike on all ranks.
  virtual int64_t staging_bytes() const = 0;

  // What every other rank of `group` hears from this one before they carry an exchange.
  virtual absl::StatusOr<std::string> WordFor(absl::Span<const int> group) = 0;

  struct Agreed {
    const Collective& collective;
    absl::Span<const ExchangePart> parts;
    DeviceEvent begun;                        // what the device had launched when it began
    const std::map<int, std::string>& words;  // of each other rank of the group
  };
  struct Carried {
    int64_t messages = 0, bytes = 0;  // received from others
  };
  // Launches all of it, behind `begun`, and returns; later work of the device runs behind it, with
  // an error too. Each rank of the group calls it for the same exchange. Requires: some part, and a
  // collective with boxes. Errors: of the transport, the world's failure.
  virtual absl::StatusOr<Carried> Carry(const Agreed& exchange) = 0;

  // The world is over, on all ranks: nothing more is carried.
  virtual void End() = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_MESSAGES_EXCHANGE_CARRIER_H_
