// Random exchanges, against what is slow and surely right.
#ifndef DTENSOR_RUNTIME_COMM_TESTING_RANDOM_EXCHANGES_H_
#define DTENSOR_RUNTIME_COMM_TESTING_RANDOM_EXCHANGES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor::box_testing {

// On every rank, with the same seed. The groups are random ones, which have this rank in them, or
// not; sources are ruined as soon as an exchange returns. `adopts`: sources are memory that is not
// the device's. Errors: kInternal for a wrong value; the communicator's.
absl::Status RandomExchanges(Communicator& communicator, Device& device, uint64_t seed, int rounds,
                             bool adopts = false);

}  // namespace dtensor::box_testing

#endif  // DTENSOR_RUNTIME_COMM_TESTING_RANDOM_EXCHANGES_H_
