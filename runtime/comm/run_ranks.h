// Ranks as threads of one process: what tests, the demo and a laptop use; and one rank of a world
// that only exists on paper.
#ifndef DTENSOR_RUNTIME_COMM_RUN_RANKS_H_
#define DTENSOR_RUNTIME_COMM_RUN_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

struct RunOptions {
  Device::Kind device = Device::Kind::kCpu;  // kCpu or kDeferred
  double timeout_seconds = 60;               // a peer silent for longer fails the world
  uint64_t seed = 0;                         // of the random delays below
  int max_delay_us = 0;  // injected before each exchange (and launch, on deferred)
  // Rank r to core r mod cores, when there are at most as many ranks as cores.
  bool pin_threads = true;
};

// Runs fn(communicator, device) on n threads, one for each rank, and waits for all of them and for
// what they launched. Returns the world's failure if it failed, even where fn hid it; otherwise the
// lowest rank's error, prefixed "rank R: "; otherwise OK. Errors: kInvalidArgument for n < 1 or
// another device.
absl::Status RunLocalRanks(int n, const std::function<absl::Status(Communicator&, Device&)>& fn,
                           const RunOptions& options = {});

// Rank `rank` of `size`: every exchange is counted and none takes place.
std::unique_ptr<Communicator> MakeSimulatedCommunicator(int rank, int size);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_RUN_RANKS_H_
