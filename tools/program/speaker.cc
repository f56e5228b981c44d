#include "dtensor/tools/program/speaker.h"

#include "dtensor/runtime/comm/process/launch.h"

namespace dtensor {
namespace {

absl::StatusOr<LaunchedRank> Launch() { return ReadLaunch({.may_lack_address = true}); }

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
