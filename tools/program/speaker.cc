#include "dtensor/tools/program/speaker.h"

#include "dtensor/runtime/comm/process/launch.h"

namespace dtensor {

bool IsSpeaker() {
  const absl::StatusOr<LaunchedRank> rank = ReadLaunch();
  return !rank.ok() || rank->rank == 0;
}

int LaunchedRanks() {
  const absl::StatusOr<LaunchedRank> rank = ReadLaunch();
  return rank.ok() && rank->launcher != "nobody" ? rank->size : 0;
}

}  // namespace dtensor
