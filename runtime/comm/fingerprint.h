// Fingerprints by which processes find out whether they mean the same thing. They are the same on
// all hosts of a job, which have one byte order. They are no protection against an attacker.
#ifndef DTENSOR_RUNTIME_COMM_FINGERPRINT_H_
#define DTENSOR_RUNTIME_COMM_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"

namespace dtensor {

// Of what a rank is about to do: its operator, kind, digest and number of parts.
uint64_t FingerprintOf(const Collective& collective, size_t parts);

// Of a group of ranks; never 0.
uint64_t FingerprintOf(absl::Span<const int> ranks);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_FINGERPRINT_H_
