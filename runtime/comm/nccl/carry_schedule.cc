#include "dtensor/runtime/comm/nccl/carry_schedule.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

bool IsOwn(const ReceiveBox& box, int receiver) {
  return absl::c_all_of(box.peers, [&](int peer) { return peer == receiver; });
}

using Round = std::vector<CarriedPiece>;

// What `receiver` receives from others.
std::vector<Round> RoundsOf(const ExchangeBoxes& boxes, absl::Span<const int64_t> sizes,
                            int receiver, int64_t round_bytes) {
  std::vector<Round> rounds;
  int64_t used = 0;
  for (size_t part = 0; part < sizes.size(); ++part) {
    for (const ReceiveBox& box : boxes.Receives(part, receiver)) {
      if (box.elements() == 0 || IsOwn(box, receiver)) continue;
      const auto terms = static_cast<int64_t>(box.peers.size());
      const int64_t most = std::max<int64_t>(1, round_bytes / (terms * sizes[part]));
      for (BoxDims& dims : CutBox(box.dims, most)) {
        const int64_t bytes = NumElements(ShapeOf(dims)) * sizes[part];
        if (rounds.empty() || used + terms * bytes > round_bytes) {
          rounds.emplace_back();
          used = 0;
        }
        used += terms * bytes;
        rounds.back().push_back({part, sizes[part], box.peers, std::move(dims), bytes});
      }
    }
  }
  for (Round& round : rounds) {
    absl::c_stable_sort(round, [](const CarriedPiece& a, const CarriedPiece& b) {
      return a.element_bytes > b.element_bytes;
    });
  }
  return rounds;
}

bool HaveOneShape(const BoxDims& a, const BoxDims& b) {
  return absl::c_equal(a, b, [](const MatchedRun& x, const MatchedRun& y) {
    return x.length == y.length && x.count == y.count;
  });
}
bool HaveOneSource(const BoxDims& a, const BoxDims& b) {
  return absl::c_equal(a, b, [](const MatchedRun& x, const MatchedRun& y) {
    return x.src == y.src && (x.count == 1 || x.src_stride == y.src_stride);
  });
}

// Depends on what all ranks receive, so all ranks compute the same.
class GatherFinder {
 public:
  GatherFinder(const Collective& collective, absl::Span<const int64_t> sizes, int rank)
      : collective_(collective), sizes_(sizes), rank_(rank) {}

  // Empty if not every part is a gather.
  std::vector<CarriedCollective> Find() {
    std::vector<CarriedCollective> gathers;
    if (!collective_.native || collective_.kind != CollectiveKind::kAllGather) return gathers;
    for (size_t part = 0; part < sizes_.size(); ++part) {
      std::optional<CarriedCollective> gather = FindPart(part);
      if (!gather) return {};
      gathers.push_back(*std::move(gather));
    }
    return gathers;
  }

 private:
  std::optional<CarriedCollective> FindPart(size_t part) {
    CarriedCollective gather{part, sizes_[part]};
    std::map<int, BoxDims> given;    // by each rank, as in the first rank that receives it
    const BoxDims* shape = nullptr;  // of the first of these
    for (const int receiver : collective_.group) {
      std::map<int, BoxDims> from;
      for (const ReceiveBox& box : collective_.boxes->Receives(part, receiver)) {
        if (IsOwn(box, receiver)) continue;
        if (box.peers.size() != 1 || !from.emplace(box.peers[0], box.dims).second) {
          return std::nullopt;
        }
      }
      if (from.size() + 1 != collective_.group.size()) return std::nullopt;
      for (const auto& [peer, dims] : from) {
        const BoxDims& first = given.emplace(peer, dims).first->second;
        if (shape == nullptr) shape = &first;
        if (!HaveOneShape(dims, *shape) || !HaveOneSource(dims, first)) return std::nullopt;
      }
      if (receiver == rank_) gather.boxes = std::move(from);
    }
    const BoxDims& mine = gather.boxes[rank_] = given.at(rank_);
    if (NumElements(ShapeOf(mine)) == 0) return std::nullopt;
    for (const ReceiveBox& box : collective_.boxes->Receives(part, rank_)) {
      if (!IsOwn(box, rank_) || box.peers.size() != 1) continue;
      if (!HaveOneShape(box.dims, mine) || !HaveOneSource(box.dims, mine)) continue;
      gather.boxes[rank_] = box.dims;
      gather.gathers_own = true;
      break;
    }
    return gather;
  }

  const Collective& collective_;
  const absl::Span<const int64_t> sizes_;
  const int rank_;
};

// Depends on what all ranks receive, too. Empty if some box is not a sum over all ranks, or is
// received by several: NCCL would add in another order for each.
std::vector<CarriedCollective> ReductionsOf(const Collective& collective,
                                            absl::Span<const int64_t> sizes) {
  std::vector<CarriedCollective> reductions;
  if (!collective.native || !collective.sums_in_any_order) return reductions;
  for (size_t part = 0; part < sizes.size(); ++part) {
    const size_t begin = reductions.size();
    for (const int receiver : collective.group) {
      const std::vector<ReceiveBox> boxes = collective.boxes->Receives(part, receiver);
      if (receiver == collective.group[0]) {
        reductions.resize(begin + boxes.size(), {part, sizes[part], /*reduces=*/true});
      }
      if (boxes.empty() || begin + boxes.size() != reductions.size()) return {};
      for (size_t i = 0; i < boxes.size(); ++i) {
        std::map<int, BoxDims>& to = reductions[begin + i].boxes;
        const BoxDims& dims = to.emplace(receiver, boxes[i].dims).first->second;
        const BoxDims& first = to.begin()->second;
        if (boxes[i].elements() == 0 || !HaveOneShape(dims, first)) return {};
        if (receiver != collective.group[0] && HaveOneSource(dims, first)) return {};
        if (!absl::c_is_permutation(boxes[i].peers, collective.group)) return {};
      }
    }
  }
  return reductions;
}

}  // namespace

CarrySchedule ScheduleOf(const Collective& collective, absl::Span<const int64_t> sizes, int rank,
                         int64_t round_bytes) {
  DT_CHECK(collective.boxes != nullptr && round_bytes > 0);
  CarrySchedule schedule;
  for (size_t part = 0; part < sizes.size(); ++part) {
    for (const ReceiveBox& box : collective.boxes->Receives(part, rank)) {
      if (box.elements() == 0) continue;
      if (IsOwn(box, rank)) schedule.own.emplace_back(part, box);
      schedule.messages += box.peers.size() - absl::c_count(box.peers, rank);
    }
  }
  schedule.collectives = GatherFinder(collective, sizes, rank).Find();
  if (schedule.collectives.empty()) schedule.collectives = ReductionsOf(collective, sizes);
  if (!schedule.collectives.empty()) return schedule;
  const auto at = [&](size_t round) -> CarriedRound& {
    if (schedule.rounds.size() <= round) schedule.rounds.resize(round + 1);
    return schedule.rounds[round];
  };
  for (const int receiver : collective.group) {
    std::vector<Round> rounds = RoundsOf(*collective.boxes, sizes, receiver, round_bytes);
    for (size_t i = 0; i < rounds.size(); ++i) {
      if (receiver == rank) {
        at(i).receives = std::move(rounds[i]);
        continue;
      }
      for (const CarriedPiece& piece : rounds[i]) {
        for (int64_t times = absl::c_count(piece.peers, rank); times > 0; --times) {
          at(i).sends[receiver].push_back(piece);
        }
      }
    }
  }
  return schedule;
}

const CarrySchedule& CarrySchedules::Of(const Collective& collective,
                                        absl::Span<const int64_t> sizes) {
  if (!collective.boxes->may_repeat()) {
    return latest_ = ScheduleOf(collective, sizes, rank_, round_bytes_);
  }
  Key key(collective.boxes->digest(), {sizes.begin(), sizes.end()});
  key.second.push_back(collective.native ? static_cast<int64_t>(collective.kind) : -1);
  key.second.push_back(collective.sums_in_any_order ? 1 : 0);
  if (const CarrySchedule* known = schedules_.Find(key); known != nullptr) return *known;
  schedules_.Insert(key, ScheduleOf(collective, sizes, rank_, round_bytes_));
  return *schedules_.Find(key);
}

}  // namespace dtensor
