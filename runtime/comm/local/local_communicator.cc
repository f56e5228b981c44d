#include "dtensor/runtime/comm/local/local_communicator.h"

#include "dtensor/runtime/comm/pulls/pull_communicator-inl.h"

namespace dtensor {

template class PullCommunicator<World>;

}  // namespace dtensor
