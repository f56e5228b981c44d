// An exchange of an operator's own, whose boxes it says itself. For the sources of this folder.
#ifndef DTENSOR_OPS_BOX_EXCHANGE_H_
#define DTENSOR_OPS_BOX_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// What each rank of a group receives, and in words: for errors.
class BoxesOfAll : public CallDescription, public ExchangeBoxes {
 protected:
  ~BoxesOfAll() = default;
};

// What is sent, and received; undefined or without elements: nothing.
struct SentTensor {
  Tensor from, to;
};

struct BoxExchange {
  CollectiveKind kind = CollectiveKind::kExchange;
  absl::string_view axes;       // "cp"
  absl::Span<const int> group;  // world ranks, ascending
  const BoxesOfAll& boxes;      // for each of the parts
  int number = 0;               // tells the exchanges of one call apart
};

// Collective over the group. Errors: failures.
absl::Status Exchange(const RankCall& call, const BoxExchange& exchange,
                      absl::Span<const SentTensor> parts);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_BOX_EXCHANGE_H_
