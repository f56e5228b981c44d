// What metadata alone says of an exchange: what is refused, and how much it writes.
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

// "Redistribute [tp] -> [] over axis "tp": ", with which every refusal begins.
std::string ExchangeLabel(const Collective& collective);

// What a rank can see without its peers: the group, the boxes in its own tensors, and whether the
// operation exists for the type. `device` is that of the tensors; null: not checked.
// Errors: kInvalidArgument, naming the operator and the axis.
absl::Status CheckExchange(const Collective& collective, absl::Span<const ExchangePart> parts,
                           int rank, int size, const Device* device);

// Whether the boxes that `box` reads lie in `source`, the tensor of world rank `peer`, and are
// of dst's type. Errors: kInvalidArgument, as above.
absl::Status CheckSource(const Collective& collective, const ReceiveBox& box, const Tensor& dst,
                         const Tensor& source, int peer);

// Of this rank's results, what the boxes of all parts write, in bytes.
int64_t WrittenBytes(absl::Span<const ExchangePart> parts);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_EXCHANGE_CHECK_H_
