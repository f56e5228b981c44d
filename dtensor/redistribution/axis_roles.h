// AxisRoles: what each mesh axis does when a tensor goes from one layout to another on the same
// mesh. The first of three parts of SameMeshTransition: roles, choice of owners, regions.
//
// Of an element, its holder's coordinate on an axis that shards the source is a function of the
// element; so is, on an axis that shards the target, the coordinate of the ranks that need it. All
// questions of a redistribution (who talks to whom, how many bytes, the bound) are about where
// these two disagree.
#ifndef DTENSOR_REDISTRIBUTION_AXIS_ROLES_H_
#define DTENSOR_REDISTRIBUTION_AXIS_ROLES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"

namespace dtensor {

class AxisRoles {
 public:
  // Requires: one mesh; layouts of shape.size() dimensions.
  AxisRoles(const Layout& from, const Layout& to, absl::Span<const int64_t> shape);

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
  // Of created(), by what they do in the source.
  const AxisList& created_from_replicas() const { return created_from_replicas_; }
  const AxisList& created_from_shards() const { return created_from_shards_; }
  // The dimension that an axis shards, or kReplicate or kPartial.
  int source_dim(int axis) const { return source_dim_[axis]; }
  int target_dim(int axis) const { return target_dim_[axis]; }
  static constexpr int kReplicate = -1, kPartial = -2;
  // Whether a higher coordinate on `axis`, which shards the source, holds higher indices, where
  // the coordinates on the axes before it are alike.
  bool AscendsAlong(int axis) const;
  // Some dimension that `axis` shards in the source is also cut by a sliced axis in the target.
  bool SlicesDimOf(int axis) const;
  int64_t SizeOf(const AxisList& axes) const;  // ranks that differ on these alone
  // A coordinate on some axes as one number, row-major.
  int64_t IndexOn(const AxisList& axes, absl::Span<const int> coordinate) const;

  // --- Counts, for each element and each coordinate on the axes that stay partial.
  int64_t terms() const { return terms_; }      // to reduce; 1 if none
  int64_t needers() const { return needers_; }  // ranks that need the result
  int64_t helper_count() const { return helper_count_; }
  bool moves() const { return moves_; }  // some element crosses between ranks

  // --- What the rank at `coordinate` has of dimension d.
  IndexSet Held(int d, absl::Span<const int> coordinate) const;    // in the source layout
  IndexSet Result(int d, absl::Span<const int> coordinate) const;  // in the target layout
  // What of dimension d is held by the ranks that have `coordinate` on `axes`.
  IndexSet HeldOver(int d, absl::Span<const int> coordinate, const AxisList& axes) const;

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
  bool MovesBetween(int axis, int source_dim, int target_dim) const;
  bool IsViewOf(int d) const;
  IndexSet Over(const Layout& layout, int d, absl::Span<const int> coordinate,
                const AxisList& axes) const {
    return DimRegionOverAxes(layout, d, shape_[d], coordinate, axes);
  }

  Layout source_, target_;
  Dims shape_;
  bool is_scalar_ = false, moves_ = false;
  int64_t elements_ = 1, terms_ = 1, needers_ = 1, helper_count_ = 1;
  AxisList source_dim_, target_dim_;  // by axis
  AxisList reduced_, created_, gathered_, sliced_, helpers_, moved_;
  AxisList created_from_replicas_, created_from_shards_;
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

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_AXIS_ROLES_H_
