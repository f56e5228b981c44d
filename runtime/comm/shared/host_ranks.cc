#include "dtensor/runtime/comm/shared/host_ranks.h"

#include <algorithm>
#include <utility>

namespace dtensor {

HostRanks::HostRanks(int rank, SharedArena& arena, Device& device, std::vector<HostRank> all)
    : rank_(rank), arena_(arena), device_(device), all_(std::move(all)) {}

const HostRank* HostRanks::Find(int rank) const {
  const auto found = std::lower_bound(all_.begin(), all_.end(), rank,
                                      [](const HostRank& a, int b) { return a.rank < b; });
  return found != all_.end() && found->rank == rank ? &*found : nullptr;
}

}  // namespace dtensor
