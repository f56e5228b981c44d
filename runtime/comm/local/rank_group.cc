#include "dtensor/runtime/comm/local/rank_group.h"

#include <algorithm>

namespace dtensor {

int RankGroup::IndexOf(int rank) const {
  return static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

void RankGroup::Wake() {
  {
    std::lock_guard lock(mutex_);
  }  // whoever is about to sleep has evaluated `ready` before, or will after
  wake_.notify_all();
}

// All wait for the last one to post, so nobody wakes for the others.
void RankGroup::WakeFor(Stage stage, uint64_t number) {
  for (int member = 0; stage == kPosted && member < size(); ++member) {
    if (!Reached(member, kPosted, number)) return;
  }
  Wake();
}

}  // namespace dtensor
