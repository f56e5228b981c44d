#include "dtensor/tools/program/speaker.h"

#include <cstdlib>

#include "dtensor/runtime/comm/process/launch.h"

namespace dtensor {
namespace {

absl::StatusOr<LaunchedRank> Launch() {
  return ReadLaunch({}, [](const char* name) { return std::getenv(name); });
}

}  // namespace

bool IsSpeaker() {
  const absl::StatusOr<LaunchedRank> rank = Launch();
  return !rank.ok() || rank->rank == 0;
}

int LaunchedRanks() {
  const absl::StatusOr<LaunchedRank> rank = Launch();
  return rank.ok() && rank->launcher != "nobody" ? rank->size : 0;
}

}  // namespace dtensor
