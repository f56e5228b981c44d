#include "dtensor/runtime/comm/world.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr double kLongest = 1e9;  // seconds: what a clock can add

// How long to spin and to yield before sleeping. Spinning answers soonest, and takes the core from
// the rank that is waited for where there are more ranks than cores.
bool Crowded(int ranks) { return ranks > static_cast<int>(std::thread::hardware_concurrency()); }

}  // namespace

World::World(int size, double timeout_seconds)
    : timeout_(std::min(timeout_seconds, kLongest)),
      spins_(Crowded(size) ? 0 : 4000),
      yields_(Crowded(size) ? 20 : 1000),
      ranks_(size) {}

RankGroup& World::GroupOf(absl::Span<const int> ranks) {
  std::lock_guard lock(groups_mutex_);
  auto& group = groups_[std::vector<int>(ranks.begin(), ranks.end())];
  if (group == nullptr) group = std::make_unique<RankGroup>(ranks);
  return *group;
}

absl::Status World::Fail(int rank, const absl::Status& reason) {
  DT_CHECK(!reason.ok());
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = absl::Status(reason.code(), absl::StrCat("rank ", rank, ": ", reason.message()));
    failed_.store(true, std::memory_order_seq_cst);
  }
  WakeAll();
  return failure();
}

absl::Status World::failure() const {
  if (!failed()) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return failure_;
}

void World::Leave(int rank, const absl::Status& status) {
  {
    std::lock_guard lock(mutex_);
    ranks_[rank].left = true;
    ranks_[rank].returned = status;
  }
  Retire(rank);
  WakeAll();
}

void World::WakeAll() {
  alarm_.fetch_add(1, std::memory_order_seq_cst);
  std::lock_guard lock(groups_mutex_);
  for (auto& [ranks, group] : groups_) group->Wake();
}

}  // namespace dtensor
