// What a redistribution moves, the bound, the memory it takes, and its predicted time.
#include <algorithm>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/numeric/int128.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/layout/even_share.h"
#include "dtensor/redistribution/cross_mesh_transition.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/redistribution/same_mesh_transition.h"
#include "dtensor/runtime/core/machine_rates.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using absl::int128;
using CoordinateVector = absl::InlinedVector<int, 4>;

// The number of elements of these regions that the rank at `coordinate` holds in the source.
int64_t HeldOf(const SameMeshTransition& t, absl::Span<const Region> regions,
               absl::Span<const int> coordinate) {
  int64_t sum = 0;
  for (const Region& region : regions) {
    int64_t held = 1;
    for (size_t d = 0; d < region.size() && held > 0; ++d) {
      held *= region[d].CommonSize(t.roles().Held(static_cast<int>(d), coordinate));
    }
    sum += held;
  }
  return sum;
}

// Create refuses plans that must move more bytes than an int64 can count. Alternatives that are
// compared with a plan may move more: for these the largest int64 is good enough.
int64_t Saturated(int128 n) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return n < kMost ? static_cast<int64_t>(n) : kMost;
}

AxisList OtherAxes(const DeviceMesh& mesh, const AxisList& axes) {
  AxisList others;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!absl::c_linear_search(axes, axis)) others.push_back(axis);
  }
  return others;
}

// The number of elements that the rank at `coordinate` receives in X.
int128 ExchangedElements(const SameMeshTransition& t, absl::Span<const int> coordinate) {
  if (t.pivot() && t.roles().reduced().empty()) return 0;
  const std::vector<Region> regions = t.pivot() ? t.Owned(coordinate) : t.Needed(coordinate);
  return int128(NumElements(regions)) * t.roles().terms() - HeldOf(t, regions, coordinate);
}

// The number of elements that it receives in G, if G is one round: all that it needs and does not
// own.
int64_t GatheredElements(const SameMeshTransition& t, absl::Span<const int> coordinate) {
  return NumElements(t.Needed(coordinate)) - NumElements(t.Owned(coordinate));
}

int128 ReceivedElements(absl::Span<const ReceiveBox> boxes, int rank) {
  int128 elements = 0;
  for (const ReceiveBox& box : boxes) {
    const auto from_others = absl::c_count_if(box.peers, [=](int p) { return p != rank; });
    elements += int128(box.elements()) * from_others;
  }
  return elements;
}

}  // namespace

int64_t RedistributionPlan::BytesReceived(int s, int rank) const {
  if (s >= static_cast<int>(rounds_.size())) return 0;
  const int64_t size = SizeOf(rounds_[s].from_source ? dtype_ : result_dtype_);
  if (cross_mesh_ != nullptr) return Saturated(ReceivedElements(Receives(s, rank), rank) * size);
  if (!from_.mesh().Contains(rank)) return 0;
  const SameMeshTransition& t = *same_mesh_;
  const CoordinateVector coordinate = from_.mesh().Coordinate(rank);
  if (rounds_[s].from_source) return Saturated(ExchangedElements(t, coordinate) * size);
  if (t.choice().rounds.empty()) return GatheredElements(t, coordinate) * size;
  return Saturated(ReceivedElements(Receives(s, rank), rank) * size);
}

int64_t RedistributionPlan::BytesReceived(int rank) const {
  int128 bytes = 0;
  for (size_t s = 0; s < rounds_.size(); ++s) bytes += BytesReceived(static_cast<int>(s), rank);
  return Saturated(bytes);
}

namespace {

// The total and the maximum over ranks, each of which receives of(rank) bytes.
template <typename Fn>
RedistributionBytes Sum(const std::vector<int>& ranks, const Fn& of) {
  int128 total = 0;
  int64_t busiest = 0;
  for (int rank : ranks) {
    const int64_t received = of(rank);
    total += received;
    busiest = std::max(busiest, received);
  }
  return {Saturated(total), busiest};
}

}  // namespace

RedistributionBytes RedistributionPlan::Bytes(int s) const {
  return Sum(Ranks(), [&](int rank) { return BytesReceived(s, rank); });
}

RedistributionBytes RedistributionPlan::Bytes() const {
  if (moves_nothing()) return {};
  return Sum(Ranks(), [&](int rank) { return BytesReceived(rank); });
}

// Sums over all elements and all coordinates on the axes that stay partial. To reduce p terms for w
// ranks takes (p - 1) + (w - 1) messages, and one more if none of the w holds a term. With one
// term, all of the w receive it except those that hold it: if one does, helper_count() of them do.
//
// If the type changes, terms are sent in the source's type, as the sum is rounded once; complete
// elements could be sent in the smaller of the two types.
int128 RedistributionPlan::LeastBytes() const {
  const int64_t term = SizeOf(dtype_), element = std::min(term, SizeOf(result_dtype_));
  if (cross_mesh_ != nullptr) {
    const CrossMeshTransition::Messages least = cross_mesh_->LeastMessages();
    return least.terms * term + least.elements * element;
  }
  const SameMeshTransition& t = *same_mesh_;
  const int128 all = t.roles().elements(), in_place = t.roles().ElementsInPlace();
  if (t.roles().reduced().empty()) {
    return (all * t.roles().needers() - in_place * t.roles().helper_count()) * element *
           KeptTerms();
  }
  return ((all * t.roles().terms() - in_place) * term + all * (t.roles().needers() - 1) * element) *
         KeptTerms();
}

// The busiest rank receives no less than the average, and no less than what any rank lacks. If
// there are several terms, a rank receives at least one message for each element that it needs,
// even if it holds a term.
RedistributionBytes RedistributionPlan::Bound() const {
  const int128 total = LeastBytes();
  const int64_t element = std::min(SizeOf(dtype_), SizeOf(result_dtype_));
  const int128 ranks = cross_mesh_ != nullptr ? cross_mesh_->ranks().size() : from_.mesh().size();
  const int128 average = (total / element + ranks - 1) / ranks;
  const int64_t lacking = cross_mesh_ != nullptr ? MostLackingAcross() : MostLacking();
  return {Saturated(total), std::max(Saturated(average), lacking) * element};
}

// The largest number of elements that a rank needs and does not hold.
int64_t RedistributionPlan::MostLacking() const {
  const SameMeshTransition& t = *same_mesh_;
  const AxisList sharing = t.possible_keeper_axes();
  CoordinateVector coordinate(from_.mesh().num_axes(), 0);
  int64_t most = 0;
  const AxisList others = OtherAxes(from_.mesh(), sharing);
  ForEachCoordinate(from_.mesh(), others, absl::MakeSpan(coordinate), [&] {
    // Ranks that share what they need together could divide it in any way, so the average counts.
    int128 lacking = 0;
    int64_t sharers = 0;
    ForEachCoordinate(from_.mesh(), sharing, absl::MakeSpan(coordinate), [&] {
      const std::vector<Region> needed = t.Needed(coordinate);
      lacking +=
          NumElements(needed) - (t.roles().reduced().empty() ? HeldOf(t, needed, coordinate) : 0);
      return ++sharers > 0;
    });
    most = std::max(most, Saturated((lacking + sharers - 1) / sharers));
    return true;
  });
  return most;
}

int64_t RedistributionPlan::MostLackingAcross() const {
  const CrossMeshTransition& t = *cross_mesh_;
  int64_t most = 0;
  for (int rank : t.ranks()) {
    const int64_t held = t.terms() > 1 ? 0 : t.HeldElements(rank);
    most = std::max(most, t.NeededElements(rank) - held);
  }
  return most;
}

namespace {

int64_t LocalElements(const Layout& layout, absl::Span<const int64_t> shape, int rank) {
  return layout.mesh().Contains(rank) ? NumElements(layout.LocalShape(shape, rank)) : 0;
}

}  // namespace

int64_t RedistributionPlan::ExtraBytes() const {
  if (is_view_ || in_place_) return staging_bytes_;
  int64_t most = 0;
  for (int rank : Ranks()) most = std::max(most, LocalElements(to_, shape_, rank));
  return most * SizeOf(result_dtype_) + staging_bytes_;
}

int64_t RedistributionPlan::PeakBytes() const {
  int64_t most = 0;
  for (int rank : Ranks()) {
    const int64_t source = LocalElements(from_, shape_, rank) * SizeOf(dtype_);
    const int64_t result =
        is_view_ || in_place_ ? 0 : LocalElements(to_, shape_, rank) * SizeOf(result_dtype_);
    most = std::max(most, source + result);
  }
  return most + staging_bytes_;
}

namespace {

// The links by which one rank reaches others.
class Reach {
 public:
  Reach(const DeviceMesh& mesh, const CostModel& links, int rank)
      : mesh_(mesh),
        links_(links),
        mine_(mesh.Contains(rank) ? mesh.Coordinate(rank) : CoordinateVector()) {}

  // The slowest link of the axes on which the peer's coordinate differs. Ranks of two meshes use
  // the link of "every other axis" (*).
  const LinkSpeed& LinkTo(int peer) const {
    if (mine_.empty() || !mesh_.Contains(peer)) return links_.Of("*");
    const CoordinateVector theirs = mesh_.Coordinate(peer);
    const LinkSpeed* slowest = nullptr;
    for (size_t axis = 0; axis < theirs.size(); ++axis) {
      if (theirs[axis] == mine_[axis]) continue;
      const LinkSpeed& link = links_.Of(mesh_.axis_name(static_cast<int>(axis)));
      if (slowest == nullptr || link.gb_per_second < slowest->gb_per_second) slowest = &link;
    }
    DT_CHECK(slowest != nullptr);
    return *slowest;
  }

 private:
  const DeviceMesh& mesh_;
  const CostModel& links_;
  const CoordinateVector mine_;
};

}  // namespace

double RedistributionPlan::PredictedSeconds(const CostModel& links) const {
  if (is_view_) return 0;
  const CostModel on_mesh = links.On(to_.mesh());
  // Ranks that receive: those only on the source's mesh receive nothing.
  const int ranks = to_.mesh().size();
  // Each sample may have as many peers as there are ranks, so large meshes get fewer samples.
  const int samples = std::min(ranks, std::clamp((1 << 20) / ranks, 2, 8));
  double seconds = 0;
  for (int s = 0; s < std::max<int>(1, static_cast<int>(rounds_.size())); ++s) {
    const bool from_source = rounds_.empty() || rounds_[s].from_source;
    const int64_t size = SizeOf(from_source ? dtype_ : result_dtype_);
    double slowest = 0;
    for (int i = 0; i < samples; ++i) {
      // Includes the first and the last rank: multiples of ranks / samples would all have the same
      // coordinate on inner axes.
      const int rank = to_.mesh().RankOf(int64_t{i} * (ranks - 1) / std::max(1, samples - 1));
      const Reach reach(to_.mesh(), on_mesh, rank);
      slowest = std::max(
          slowest, SecondsOfRound(on_mesh.rates(), Receives(s, rank), size, rank,
                                  [&](int peer) -> const LinkSpeed& { return reach.LinkTo(peer); })
                       .total());
    }
    seconds += slowest;
  }
  return seconds;
}

}  // namespace dtensor
