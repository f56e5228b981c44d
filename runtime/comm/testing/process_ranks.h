// Ranks as threads, each with a ProcessWorld of its own, as processes have; and an exchange.
#ifndef DTENSOR_RUNTIME_COMM_TESTING_PROCESS_RANKS_H_
#define DTENSOR_RUNTIME_COMM_TESTING_PROCESS_RANKS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/process_world.h"

namespace dtensor {

// How ranks reach each other: all by shared memory, all by TCP, two and two by shared memory, or by
// NCCL, each on a GPU.
enum class RankWay { kShared, kTcp, kPairs, kNccl };

// A world of `size` ranks on a free port, whose ranks are As(it, rank).
LaunchedRank Launched(int size, double timeout_seconds = 30, RankWay way = RankWay::kShared);
LaunchedRank As(LaunchedRank launched, int rank);

using ProcessFunction = std::function<absl::Status(ProcessWorld&)>;
// What the rank's Leave, or Join, returned.
absl::Status RunProcess(const LaunchedRank& rank, const ProcessFunction& fn);
std::vector<absl::Status> RunProcesses(const LaunchedRank& launched, const ProcessFunction& fn);

// Each rank of `group` receives `length` elements of every one, its own too. Errors: kDataLoss for
// one that is not what its rank sent; of the exchange; of `between`, which is done while it is on
// its way.
absl::Status Gather(ProcessWorld& world, const std::vector<int>& group, int64_t length,
                    const std::function<absl::Status()>& between = nullptr);
// Both call it: `to` alone receives, which `from` waits for when it has done `between`.
absl::Status Send(ProcessWorld& world, int from, int to, int64_t length,
                  const std::function<absl::Status()>& between = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_TESTING_PROCESS_RANKS_H_
