// SameMeshTransition: what each mesh axis does when a tensor goes from one layout to another, and
// what each rank holds, needs and owns on the way. The algebra under RedistributionPlan, for its
// sources alone.
//
// Of an element, its holder's coordinate on an axis that shards the source is a function of the
// element; so is, on an axis that shards the target, the coordinate of the ranks that need it. All
// questions below (who talks to whom, how many bytes, the bound) are about where these two
// disagree.
#ifndef DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_
#define DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"

namespace dtensor {

// Who makes an element of the result, of the ranks that need it, before the others get it.
enum class Owners : uint8_t {
  kNeeders,   // each for itself: there is no second round
  kHolders,   // on axes that shard the source, the rank at the holder's coordinate
  kAnyNeeder  // all of them share the work evenly
};

class SameMeshTransition {
 public:
  // Requires: one mesh; layouts of shape.size() dimensions.
  SameMeshTransition(const Layout& from, const Layout& to, absl::Span<const int64_t> shape);

  // Whom owners() says; at first kNeeders or kHolders, whichever moves least. Requires:
  // may_have_owners().
  void set_owners(Owners owners) { owners_ = owners; }
  Owners owners() const { return owners_; }
  // Terms are reduced for several ranks in need.
  bool may_have_owners() const;
  // The owners pass their elements on in several rounds, each along these axes, in this order: all
  // of owner_axes(). Also where nothing is reduced, if nothing moves but what is gathered.
  void set_rounds(std::vector<AxisList> rounds) { rounds_ = std::move(rounds); }
  const std::vector<AxisList>& rounds() const { return rounds_; }
  bool may_have_rounds() const;
  // Ranks on axes that go from Shard to Partial share what is reduced for them, too; else the
  // holder has it alone.
  void set_shares_terms(bool on) { shares_terms_ = on; }
  bool shares_terms() const { return shares_terms_; }
  bool may_share_terms() const;

  // The layouts and the shape, with at least one dimension: a scalar has one of size 1. An axis
  // that becomes P(avg) replicates `target`: the average of equal terms is the term.
  const Layout& source() const { return source_; }
  const Layout& target() const { return target_; }
  const Dims& shape() const { return shape_; }
  bool is_scalar() const { return is_scalar_; }
  int64_t elements() const { return elements_; }  // of the tensor

  // --- Axes by what they do, ascending. Axes of size 1 are nowhere.
  const AxisList& reduced() const { return reduced_; }    // partial in the source alone
  const AxisList& created() const { return created_; }    // partial in the target alone
  const AxisList& gathered() const { return gathered_; }  // shard the source, replicate the target
  const AxisList& sliced() const { return sliced_; }      // replicate the source, shard the target
  // Replicate the target and do not shard the source: their ranks share the work of reducing.
  const AxisList& helpers() const { return helpers_; }
  // Shard both, and for some element its holder and those who need it have unlike coordinates.
  const AxisList& moved() const { return moved_; }
  // Of created(), those whose ranks share what they need together; and those that they could.
  AxisList keeper_axes() const;
  AxisList possible_keeper_axes() const;
  const AxisList& created_from_shards() const { return created_from_shards_; }
  // The dimension that an axis shards, or kReplicate or kPartial.
  int source_dim(int axis) const { return source_dim_[axis]; }
  int target_dim(int axis) const { return target_dim_[axis]; }
  static constexpr int kReplicate = -1, kPartial = -2;
  // Whether peers in X differ on `axis`, which shards the source.
  bool SendsAlong(int axis) const;
  // Whether a higher coordinate on `axis`, which shards the source, holds higher indices, where
  // the coordinates on the axes before it are alike.
  bool AscendsAlong(int axis) const;
  // Some dimension that `axis` shards in the source is also cut by a sliced axis in the target.
  bool SlicesDimOf(int axis) const;

  // --- Counts, for each element and each coordinate on the axes that stay partial.
  int64_t terms() const { return terms_; }      // to reduce; 1 if none
  int64_t needers() const { return needers_; }  // ranks that need the result
  int64_t helper_count() const { return helper_count_; }
  // Whether each element has one owner, which passes it on: G follows X.
  bool pivot() const { return owners_ != Owners::kNeeders; }
  // The axes along which the owners of what a rank needs differ, ascending; those of them whose
  // ranks share the work evenly, and those where the owner's coordinate is the holder's.
  AxisList owner_axes() const;
  AxisList sharing_axes() const;
  AxisList holder_axes() const { return owners_ == Owners::kHolders ? gathered_ : AxisList(); }

  // --- What the rank at `coordinate` has of dimension d.
  IndexSet Held(int d, absl::Span<const int> coordinate) const;    // in the source layout
  IndexSet Result(int d, absl::Span<const int> coordinate) const;  // in the target layout
  // The part of Result that it must have, in disjoint regions; the rest is the identity of the
  // target's partial op. Of ranks that differ on axes that become partial, one must have each
  // element: the holder, if the axis shards the source and unless shares_terms(); else all share
  // evenly, or, where nothing moves, coordinate 0 keeps what it has.
  std::vector<Region> Needed(absl::Span<const int> coordinate) const;
  // The part of Needed that it owns with all ranks that differ on sharing_axes(), and its own share
  // of that. Requires: pivot().
  std::vector<Region> OwnedTogether(absl::Span<const int> coordinate) const;
  std::vector<Region> Owned(absl::Span<const int> coordinate) const;

  // How many elements have a holder among the ranks that need them.
  int64_t ElementsInPlace() const;
  // Every rank finds all that it needs among what it holds, in one box without strides.
  bool IsView() const;
  // What moves is reduced, and no more: every rank has the same region in both layouts.
  bool KeepsRegions() const;
  // The target is the source with axes renamed: each rank's result is what one rank holds.
  bool IsRelabelling() const;

 private:
  void FindRoles(const Layout& to);
  void ReplicateNewAverages(const Layout& to);
  void AddRoles(int axis);
  void ChooseOwners();
  bool MovesBetween(int axis, int source_dim, int target_dim) const;
  IndexSet Over(const Layout& layout, int d, absl::Span<const int> coordinate,
                const AxisList& axes) const {
    return DimRegionOverAxes(layout, d, shape_[d], coordinate, axes);
  }
  bool IsViewOf(int d) const;
  int64_t SizeOf(const AxisList& axes) const;
  std::vector<Region> NeededTogether(absl::Span<const int> coordinate) const;
  std::vector<Region> HeldPart(std::vector<Region> regions, absl::Span<const int> holder,
                               const AxisList& axes) const;
  std::vector<Region> KeeperShare(std::vector<Region> regions, absl::Span<const int> holder,
                                  absl::Span<const int> coordinate) const;
  // The coordinate on some axes as one number, row-major.
  int64_t IndexOn(const AxisList& axes, absl::Span<const int> coordinate) const;

  Layout source_, target_;
  Dims shape_;
  bool is_scalar_ = false;
  bool moves_ = false;  // some element crosses between ranks
  bool shares_terms_ = false;
  Owners owners_ = Owners::kNeeders;
  std::vector<AxisList> rounds_;
  int64_t elements_ = 1, terms_ = 1, needers_ = 1, helper_count_ = 1;
  AxisList source_dim_, target_dim_;  // by axis
  AxisList reduced_, created_, gathered_, sliced_, helpers_, moved_;
  // Of created_, those that replicate the source.
  AxisList created_from_replicas_;
  AxisList created_from_shards_;
};

// A scalar's layout, as that of one dimension of size 1.
Layout AtLeastOneDim(const Layout& layout);

// Calls fn() with `coordinate` running over every coordinate on `axes`, row-major; fn returns
// whether to go on. Returns false if it did not. Restores `coordinate`.
template <typename Fn>
bool ForEachCoordinate(const DeviceMesh& mesh, absl::Span<const int> axes,
                       absl::Span<int> coordinate, Fn&& fn) {
  if (axes.empty()) return fn();
  int& index = coordinate[axes[0]];
  const int before = index;
  bool go_on = true;
  for (index = 0; go_on && index < mesh.axis_size(axes[0]); ++index) {
    go_on = ForEachCoordinate(mesh, axes.subspan(1), coordinate, fn);
  }
  index = before;
  return go_on;
}

// The boxes that `rank` receives: in X from the peers' sources, in G (of which `round` says the
// round) from their results, where what the rank owns lies already. Disjoint.
std::vector<ReceiveBox> ExchangeBoxes(const SameMeshTransition& transition, int rank);
std::vector<ReceiveBox> GatherBoxes(const SameMeshTransition& transition, int rank, int round);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_SAME_MESH_TRANSITION_H_
