// What can be told of an exchange from metadata alone: whether it is refused, and how much it
// writes.
#ifndef DTENSOR_RUNTIME_COMM_EXCHANGE_CHECK_H_
#define DTENSOR_RUNTIME_COMM_EXCHANGE_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

// The beginning of every refusal: "Redistribute [tp] -> [] over axis "tp": ".
std::string ExchangeLabel(const Collective& collective);

// Checks what a rank can see without its peers: the group, the boxes in its own tensors, and
// whether the operation exists for the type. `device` is the one that tensors must be on; null: not
// checked. Errors: kInvalidArgument, naming the operator and the axis.
absl::Status CheckExchange(const Collective& collective, absl::Span<const ExchangePart> parts,
                           int rank, int size, const Device* device);

// Checks that `source`, the tensor of world rank `peer`, contains what `box` reads, and has a type
// that converts to dst's. Errors: kInvalidArgument, as above.
absl::Status CheckSource(const Collective& collective, const ReceiveBox& box, const Tensor& dst,
                         const Tensor& source, int peer);

// Whether this rank only sends: it then counts the exchange when it begins.
bool ReceivesNothing(absl::Span<const ExchangePart> parts);

// How many bytes of this rank's results the boxes of all parts write.
int64_t WrittenBytes(absl::Span<const ExchangePart> parts);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_EXCHANGE_CHECK_H_
