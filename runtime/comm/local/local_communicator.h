// LocalCommunicator: ranks are threads of one process, and read each other's memory.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_COMMUNICATOR_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_COMMUNICATOR_H_

#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/comm/pulls/pull_communicator.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

using LocalCommunicator = PullCommunicator<World>;

extern template class PullCommunicator<World>;

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_LOCAL_COMMUNICATOR_H_
