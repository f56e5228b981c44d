// Numbers that say whether two processes mean the same: alike on all hosts of a job, whose byte
// order is one. By them ranks are compared, not protected.
#ifndef DTENSOR_RUNTIME_COMM_FINGERPRINT_H_
#define DTENSOR_RUNTIME_COMM_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"

namespace dtensor {

// Of what a rank is about to do: operator, kind, digest and number of parts.
uint64_t FingerprintOf(const Collective& collective, size_t parts);

// Of a group of ranks; never 0.
uint64_t FingerprintOf(absl::Span<const int> ranks);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_FINGERPRINT_H_
