#include "dtensor/runtime/comm/local/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr double kLongest = 1e9;  // seconds: what a clock can add

// Leaves out the rank if there is no memory for the text: the failure of a world must not itself
// fail.
absl::Status OfRank(int rank, const absl::Status& status) {
  absl::Status named = status;
  NoThrow([&] {
    named = absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
    return absl::OkStatus();
  }).IgnoreError();
  return named;
}

}  // namespace

World::World(int size, double timeout_seconds)
    : timeout_(std::min(timeout_seconds, kLongest)), spinning_(size), ranks_(size) {}

std::shared_ptr<RankGroup> World::GroupOf(absl::Span<const int> ranks) {
  std::lock_guard lock(groups_mutex_);
  if (groups_.size() >= most_groups_) {
    std::erase_if(groups_, [](const auto& known) { return known.second.expired(); });
    most_groups_ = std::max(most_groups_, 2 * groups_.size());
  }
  std::weak_ptr<RankGroup>& known = groups_[std::vector<int>(ranks.begin(), ranks.end())];
  std::shared_ptr<RankGroup> group = known.lock();
  if (group == nullptr) known = group = std::make_shared<RankGroup>(ranks);
  return group;
}

int World::num_groups() {
  std::lock_guard lock(groups_mutex_);
  return static_cast<int>(std::count_if(groups_.begin(), groups_.end(),
                                        [](const auto& known) { return !known.second.expired(); }));
}

absl::Status World::Fail(int rank, const absl::Status& reason) {
  DT_REQUIRE(!reason.ok(), "Communicator::Fail: the reason must be an error");
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = OfRank(rank, reason);
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
    ++left_;
    if (returned_error_.ok() && !status.ok()) returned_error_ = OfRank(rank, status);
  }
  WakeAll();
}

void World::Return() {
  std::lock_guard lock(mutex_);
  for (Rank& rank : ranks_) {
    rank.left = false;
    rank.returned = absl::OkStatus();
  }
  left_ = 0;
  returned_error_ = absl::OkStatus();
}

void World::AwaitAlarm(uint64_t seen, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  alarmed_.wait_until(lock, until, [&] { return alarm() != seen; });
}

bool World::all_left() const {
  std::lock_guard lock(mutex_);
  return left_ == size();
}

std::vector<int> World::running() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    if (!ranks_[rank].left) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status World::returned_error() const {
  std::lock_guard lock(mutex_);
  return returned_error_;
}

void World::WakeAll() {
  {
    std::lock_guard lock(mutex_);  // whoever is about to sleep in AwaitAlarm has looked before
    alarm_.fetch_add(1, std::memory_order_seq_cst);
  }
  alarmed_.notify_all();
  std::lock_guard lock(groups_mutex_);
  for (auto& [ranks, known] : groups_) {
    if (const std::shared_ptr<RankGroup> group = known.lock(); group != nullptr) group->Wake();
  }
}

}  // namespace dtensor
