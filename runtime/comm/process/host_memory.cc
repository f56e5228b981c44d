#include "dtensor/runtime/comm/process/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Each rank of a host maps an arena of every rank of that host, and a process has 47 bits of
// addresses. How many ranks the host has is not known yet, only the world's size.
constexpr int64_t kMostBytes = int64_t{1} << 40, kLeastBytes = int64_t{1} << 34;
constexpr int64_t kAllBytes = int64_t{1} << 46;

// The share of an address limit (ulimit -v) for each rank's arena; as much is left for everything
// else.
int64_t ShareOfLimit(int size) {
  rlimit limit;
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= rlim_t{kMost}) return kMost;
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;  // mapped pages
  statm >> pages;
  return (static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE)) / (size + 1);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedArena>> MakeRankArena(int size) {
#if defined(__SANITIZE_THREAD__)
  const int64_t most = kLeastBytes;  // TSan leaves a program few addresses
#else
  const int64_t most = kMostBytes;
#endif
  constexpr int64_t kPages = PageSource::kHugePage;
  const int64_t share = std::max(ShareOfLimit(size), SharedArena::kLeast);
  const int64_t bytes = std::min(std::clamp(kAllBytes / size, kLeastBytes, most), share);
  return SharedArena::Create(bytes / kPages * kPages, sizeof(Board));
}

absl::StatusOr<std::unique_ptr<HostMemory>> HostMemory::Open(int rank,
                                                             absl::Span<const HostCard> cards,
                                                             std::shared_ptr<SharedArena> arena,
                                                             Device& device, WorldState& state,
                                                             std::function<bool()> meanwhile) {
  std::unique_ptr<HostMemory> made(new HostMemory());
  made->arena_ = std::move(arena);
  const std::vector<int> first = FirstOfHost(cards);
  std::vector<HostRank> ranks;
  for (int peer = 0; peer < static_cast<int>(cards.size()); ++peer) {
    if (first[peer] != first[rank]) continue;
    if (peer == rank) {
      ranks.push_back({peer, made->arena_->data(), made->arena_->bytes()});
      continue;
    }
    absl::StatusOr<ArenaView> view = ArenaView::Open(cards[peer].arena);
    if (view.ok() && view->bytes() < static_cast<int64_t>(sizeof(Board))) {
      view = InvalidArgument({"it has only ", absl::StrCat(view->bytes()),
                              " bytes; start the same build on all ranks"});
    }
    if (!view.ok()) {
      return absl::Status(view.status().code(), absl::StrCat("JoinWorld: memory of rank ", peer,
                                                             ": ", view.status().message()));
    }
    ranks.push_back({peer, view->data(), view->bytes()});
    made->views_.push_back(*std::move(view));
  }
  made->ranks_ = std::make_unique<HostRanks>(rank, *made->arena_, device, std::move(ranks));
  made->world_ = std::make_unique<SharedWorld>(static_cast<int>(cards.size()), *made->ranks_, state,
                                               std::move(meanwhile));
  made->communicator_ = std::make_unique<SharedCommunicator>(*made->world_, rank, device);
  return made;
}

void HostMemory::End() {
  communicator_->End();
  views_.clear();  // each takes as many addresses as this rank's arena
}

}  // namespace dtensor
