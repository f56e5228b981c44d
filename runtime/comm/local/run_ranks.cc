#include "dtensor/runtime/comm/local/run_ranks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/core_claim.h"
#include "dtensor/runtime/comm/local/local_ranks.h"
#include "dtensor/runtime/comm/local/world_parts.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/meta/meta_device.h"

namespace dtensor {

bool CanPin(int n) { return CoreClaim::Make(n).ok(); }

absl::Status RunLocalRanks(int n, const RankFunction& fn, const RunOptions& options) {
  return NoThrow([&] {
    DT_ASSIGN_OR_RETURN(const auto ranks, LocalRanks::Create(n, options));
    return ranks->Run(fn);
  });
}

absl::Status RunSimulatedRank(int rank, int size, const RankFunction& fn,
                              const MachineRates& rates) {
  if (size < 1 || rank < 0 || rank >= size) {
    return InvalidArgument(
        {"Simulate: there is no rank ", absl::StrCat(rank), " of ", absl::StrCat(size)});
  }
  if (!fn) return InvalidArgument({"Simulate: the function to run is null"});
  auto ranks = std::make_unique<WorldParts>();
  ranks->devices.push_back(MakeMetaDevice(rates));
  ranks->simulated = MakeSimulatedCommunicator(rank, size, ClockOf(*ranks->devices[0]));
  const absl::Status status = NoThrow([&] { return fn(*ranks->simulated, *ranks->devices[0]); });
  LetGo(std::move(ranks));
  return status;
}

}  // namespace dtensor
