#include "dtensor/runtime/comm/local/core_claim.h"

#include <mutex>
#include <set>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The claims of this process, which all its worlds share. Never destroyed, since the last worlds
// may be in static variables.
struct Claimed {
  std::mutex mutex;
  std::set<int> cores;
};
Claimed& AllClaimed() {
  static auto& claimed = *new Claimed;
  return claimed;
}

// The cores on which this thread may run.
std::vector<int> AllowedCores() {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
#endif
  return cores;
}

}  // namespace

absl::StatusOr<CoreClaim> CoreClaim::Make(int n) {
  if (n < 1) return InvalidArgument({"pin_threads: ", absl::StrCat(n), " ranks; at least one"});
  const std::vector<int> allowed = AllowedCores();
  if (allowed.empty()) return absl::UnimplementedError("pin_threads: this system does not pin");
  Claimed& claimed = AllClaimed();
  std::lock_guard lock(claimed.mutex);
  std::vector<int> free;
  for (const int core : allowed) {
    if (!claimed.cores.contains(core)) free.push_back(core);
  }
  if (static_cast<int>(free.size()) < n) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pin_threads: ", n, " ranks need a core each; of the ", allowed.size(),
                     " that this process may use, other worlds have ", allowed.size() - free.size(),
                     "; run fewer ranks, end the other worlds, or leave pin_threads off"));
  }
  free.resize(n);
  claimed.cores.insert(free.begin(), free.end());
  CoreClaim claim;
  claim.cores_ = std::move(free);
  return claim;
}

CoreClaim::~CoreClaim() {
  if (cores_.empty()) return;
  Claimed& claimed = AllClaimed();
  std::lock_guard lock(claimed.mutex);
  for (const int core : cores_) claimed.cores.erase(core);
}

void CoreClaim::PinThisThread([[maybe_unused]] int i) const {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cores_[i], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
#endif
}

}  // namespace dtensor
