// HostRanks: those ranks of a world that are processes of this host, and where each one's memory is
// mapped.
#ifndef DTENSOR_RUNTIME_COMM_SHARED_HOST_RANKS_H_
#define DTENSOR_RUNTIME_COMM_SHARED_HOST_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/comm/shared/board.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// A rank's arena as this process sees it; it begins with the rank's Board.
struct HostRank {
  int rank = 0;
  const char* data = nullptr;
  int64_t bytes = 0;

  const Board& board() const { return *reinterpret_cast<const Board*>(data); }
};

class HostRanks {
 public:
  // `arena` and `device` belong to `rank`, which is one of `all`; `all` is ascending. Both outlive
  // it.
  HostRanks(int rank, SharedArena& arena, Device& device, std::vector<HostRank> all);

  int rank() const { return rank_; }
  SharedArena& arena() const { return arena_; }
  Device& device() const { return device_; }
  Board& board() const { return *reinterpret_cast<Board*>(arena_.data()); }
  const std::vector<HostRank>& all() const { return all_; }
  const HostRank* Find(int rank) const;  // null: not of this host

 private:
  const int rank_;
  SharedArena& arena_;
  Device& device_;
  const std::vector<HostRank> all_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_SHARED_HOST_RANKS_H_
