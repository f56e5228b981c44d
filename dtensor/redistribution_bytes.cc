// What a redistribution moves, must move, holds, and how long it is expected to take.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "dtensor/chunks.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/redistribution_plan.h"
#include "dtensor/region_share.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/transition.h"

namespace dtensor {
namespace {

using CoordinateVector = absl::InlinedVector<int, 4>;

// Of some regions, the elements that the rank at `coordinate` holds in the source.
int64_t HeldOf(const Transition& t, absl::Span<const Region> regions,
               absl::Span<const int> coordinate) {
  int64_t sum = 0;
  for (const Region& region : regions) {
    int64_t held = 1;
    for (size_t d = 0; d < region.size() && held > 0; ++d) {
      held *= region[d].Intersect(t.Held(static_cast<int>(d), coordinate)).size();
    }
    sum += held;
  }
  return sum;
}

// Elements that X brings to the rank at `coordinate`.
int64_t ExchangedElements(const Transition& t, absl::Span<const int> coordinate) {
  if (t.pivot() && t.reduced().empty()) return 0;
  const std::vector<Region> regions = t.pivot() ? t.Owned(coordinate) : t.Needed(coordinate);
  return NumElements(regions) * t.terms() - HeldOf(t, regions, coordinate);
}

// Elements that G brings in one round: all that is needed and not owned.
int64_t GatheredElements(const Transition& t, absl::Span<const int> coordinate) {
  return NumElements(t.Needed(coordinate)) - NumElements(t.Owned(coordinate));
}

int64_t ReceivedElements(absl::Span<const Transfer> boxes, int rank) {
  int64_t elements = 0;
  for (const Transfer& box : boxes) {
    elements += box.elements() * absl::c_count_if(box.peers, [=](int p) { return p != rank; });
  }
  return elements;
}

}  // namespace

int64_t RedistributionPlan::BytesReceived(int s, int rank) const {
  if (s >= static_cast<int>(steps_.size())) return 0;
  const int64_t size = SizeOf(steps_[s].from_source ? dtype_ : result_dtype_);
  if (transfer_ != nullptr) return ReceivedElements(Receives(s, rank), rank) * size;
  const Transition& t = *transition_;
  const CoordinateVector coordinate = from_.mesh().Coordinate(rank);
  if (steps_[s].from_source) return ExchangedElements(t, coordinate) * size;
  if (t.stages().empty()) return GatheredElements(t, coordinate) * size;
  return ReceivedElements(Receives(s, rank), rank) * size;
}

int64_t RedistributionPlan::BytesReceived(int rank) const {
  int64_t bytes = 0;
  for (size_t s = 0; s < steps_.size(); ++s) bytes += BytesReceived(static_cast<int>(s), rank);
  return bytes;
}

RedistributionBytes RedistributionPlan::Bytes(int s) const {
  RedistributionBytes bytes;
  for (int rank : Ranks()) {
    const int64_t received = BytesReceived(s, rank);
    bytes.total += received;
    bytes.busiest = std::max(bytes.busiest, received);
  }
  return bytes;
}

RedistributionBytes RedistributionPlan::Bytes() const {
  RedistributionBytes bytes;
  if (moves_nothing()) return bytes;
  for (int rank : Ranks()) {
    const int64_t received = BytesReceived(rank);
    bytes.total += received;
    bytes.busiest = std::max(bytes.busiest, received);
  }
  return bytes;
}

// In total, for each element and each coordinate on the axes that stay partial: to reduce p terms
// for w ranks in need takes (p - 1) + (w - 1) messages, and one more where none of the w holds a
// term. With one term, all in need but those that hold it receive it: `helpers` of them where one
// does, else none.
//
// The busiest rank receives no less than the average, and no less than what any rank lacks: of
// several terms at least one message for each element that it needs, even where it holds a term.
RedistributionBytes RedistributionPlan::Bound() const {
  if (transfer_ != nullptr) return TransferBound();
  const Transition& t = *transition_;
  const bool reduces = !t.reduced().empty();
  int64_t messages = t.elements() * t.needers();
  const int64_t in_place = t.ElementsInPlace();
  if (reduces) {
    messages += t.elements() * (t.terms() - 1) - in_place;
  } else {
    messages -= t.helper_count() * in_place;
  }
  for (int axis : from_.partial_axes()) {
    if (to_.use(axis) == Layout::AxisUse::kPartial) messages *= from_.mesh().axis_size(axis);
  }
  int64_t busiest = CeilDiv(messages, from_.mesh().size());
  for (int rank : Ranks()) {
    CoordinateVector coordinate = from_.mesh().Coordinate(rank);
    // Those who share what they need together could share it in any way.
    int64_t lacking = 0, sharers = 0;
    ForEachCoordinate(from_.mesh(), t.possible_keeper_axes(), absl::MakeSpan(coordinate), [&] {
      const std::vector<Region> needed = t.Needed(coordinate);
      lacking += NumElements(needed) - (reduces ? 0 : HeldOf(t, needed, coordinate));
      return ++sharers > 0;
    });
    busiest = std::max(busiest, CeilDiv(lacking, sharers));
  }
  return {messages * SizeOf(dtype_), busiest * SizeOf(dtype_)};
}

RedistributionBytes RedistributionPlan::TransferBound() const {
  const MeshTransfer& t = *transfer_;
  const int64_t messages = t.LeastMessages();
  int64_t busiest = CeilDiv(messages, static_cast<int64_t>(t.ranks().size()));
  for (int rank : t.ranks()) {
    const int64_t held = t.terms() > 1 ? 0 : t.HeldElements(rank);
    busiest = std::max(busiest, t.NeededElements(rank) - held);
  }
  return {messages * SizeOf(dtype_), busiest * SizeOf(dtype_)};
}

namespace {

int64_t LocalElements(const Layout& layout, absl::Span<const int64_t> shape, int rank) {
  return layout.mesh().Contains(rank) ? NumElements(layout.LocalShape(shape, rank)) : 0;
}

}  // namespace

int64_t RedistributionPlan::ExtraBytes() const {
  if (is_view_ || in_place_) return 0;
  int64_t most = 0;
  for (int rank : Ranks()) most = std::max(most, LocalElements(to_, shape_, rank));
  return most * SizeOf(result_dtype_);
}

int64_t RedistributionPlan::PeakBytes() const {
  int64_t most = 0;
  for (int rank : Ranks()) {
    const int64_t source = LocalElements(from_, shape_, rank) * SizeOf(dtype_);
    const int64_t result =
        is_view_ || in_place_ ? 0 : LocalElements(to_, shape_, rank) * SizeOf(result_dtype_);
    most = std::max(most, source + result);
  }
  return most;
}

namespace {

// Seconds that one rank spends in one round: the latency of its slowest link, what comes over each,
// and the work on its own memory.
class Price {
 public:
  Price(const DeviceMesh& mesh, const LinkTable& links, int rank)
      : mesh_(mesh),
        links_(links),
        mine_(mesh.Contains(rank) ? mesh.Coordinate(rank) : CoordinateVector()),
        rank_(rank) {}

  double Of(absl::Span<const Transfer> boxes, int64_t element_size) const {
    double seconds = 0, latency_us = 0;
    for (const Transfer& box : boxes) {
      const double bytes = static_cast<double>(box.elements() * element_size);
      for (int peer : box.peers) {
        if (peer == rank_) continue;
        const Link& link = LinkTo(peer);
        seconds += bytes / (link.gb_per_second * 1e9);
        latency_us = std::max(latency_us, link.latency_us);
      }
      if (box.peers.size() > 1) {
        seconds += bytes * box.peers.size() / (links_.reduce_gb_per_second() * 1e9);
      } else if (box.peers[0] == rank_) {
        seconds += 2 * bytes / (links_.copy_gb_per_second() * 1e9);
      }
    }
    return seconds + latency_us * 1e-6;
  }

 private:
  // The slowest of the axes on which the peer is elsewhere; a mesh's ranks talk to those of another
  // by the link of every other axis.
  const Link& LinkTo(int peer) const {
    if (mine_.empty() || !mesh_.Contains(peer)) return links_.Of("*");
    const CoordinateVector theirs = mesh_.Coordinate(peer);
    const Link* slowest = nullptr;
    for (size_t axis = 0; axis < theirs.size(); ++axis) {
      if (theirs[axis] == mine_[axis]) continue;
      const Link& link = links_.Of(mesh_.axis_name(static_cast<int>(axis)));
      if (slowest == nullptr || link.gb_per_second < slowest->gb_per_second) slowest = &link;
    }
    DT_CHECK(slowest != nullptr);
    return *slowest;
  }

  const DeviceMesh& mesh_;
  const LinkTable& links_;
  const CoordinateVector mine_;
  const int rank_;
};

}  // namespace

double RedistributionPlan::PredictedSeconds(const LinkTable& links) const {
  if (is_view_) return 0;
  const std::vector<int> ranks = Ranks();
  const size_t samples = std::min<size_t>(ranks.size(), 8);
  double seconds = 0;
  for (int s = 0; s < std::max<int>(1, static_cast<int>(steps_.size())); ++s) {
    double slowest = 0;
    for (size_t i = 0; i < samples; ++i) {
      const int rank = ranks[i * ranks.size() / samples];
      const Price price(to_.mesh(), links, rank);
      slowest = std::max(slowest, price.Of(Receives(s, rank), SizeOf(dtype_)));
    }
    seconds += slowest;
  }
  return seconds;
}

}  // namespace dtensor
