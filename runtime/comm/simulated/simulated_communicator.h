// A communicator that moves nothing, counts everything, and computes how long it would take.
#ifndef DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_

#include <memory>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/meta/simulated_clock.h"

namespace DTENSOR_EXPORT dtensor {

// Makes rank `rank` of `size`: every exchange is counted and none takes place. With a `clock`,
// which outlives the communicator (null: no clock), an exchange starts when the rank asks for it or
// when its links become free, whichever is later, and its Finish waits for its end.
// Requires: 0 <= rank < size.
std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size,
                                                        SimulatedClock* clock = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SIMULATED_SIMULATED_COMMUNICATOR_H_
