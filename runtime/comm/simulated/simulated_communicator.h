// A communicator that moves nothing and counts all.
#ifndef DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_

#include <memory>

#include "dtensor/runtime/comm/communicator.h"

namespace dtensor {

// Rank `rank` of `size`: every exchange is counted and none takes place.
// Requires: 0 <= rank < size.
std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_
