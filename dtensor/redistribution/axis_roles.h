// AxisRoles: what each mesh axis does when a tensor goes from one layout to another on the same
// mesh. The first of three parts of SameMeshTransition: roles, choice of owners, regions.
//
// For a given element, the coordinate of its holder on each axis that shards the source is
// determined, and so is the coordinate of the ranks that need it on each axis that shards the
// target. Everything about a redistribution (which ranks talk to each other, how many bytes, the
// bound) follows from where these coordinates differ.
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

  // The layouts and the shape, with at least one dimension: a scalar is treated as one dimension of
  // size 1. In target(), an axis that becomes P(avg) is replicated: the average of equal terms is
  // the term.
  const Layout& source() const { return source_; }
  const Layout& target() const { return target_; }
  const Dims& shape() const { return shape_; }
  bool is_scalar() const { return is_scalar_; }
  int64_t elements() const { return elements_; }  // of the tensor

  // --- Axes by role, ascending. Axes of size 1 are in none of these lists.
  const AxisList& reduced() const { return reduced_; }    // partial in the source alone
  const AxisList& created() const { return created_; }    // partial in the target alone
  const AxisList& gathered() const { return gathered_; }  // shard the source, replicate the target
  const AxisList& sliced() const { return sliced_; }      // replicate the source, shard the target
  // Replicate the target and do not shard the source: their ranks share the work of reducing.
  const AxisList& helpers() const { return helpers_; }
  // Shard both, and for some element the holder and the ranks that need it differ in coordinate.
  const AxisList& moved() const { return moved_; }
  // created(), divided by the axes' role in the source.
  const AxisList& created_from_replicas() const { return created_from_replicas_; }
  const AxisList& created_from_shards() const { return created_from_shards_; }
  // The dimension that an axis shards, or kReplicate or kPartial.
  int source_dim(int axis) const { return source_dim_[axis]; }
  int target_dim(int axis) const { return target_dim_[axis]; }
  static constexpr int kReplicate = -1, kPartial = -2;
  // Whether ranks with a higher coordinate on `axis`, which shards the source, hold higher indices,
  // if their coordinates on the axes before it are equal.
  bool AscendsAlong(int axis) const;
  // Whether the dimension that `axis` shards in the source is also split by a sliced axis in the
  // target.
  bool SlicesDimOf(int axis) const;
  int64_t SizeOf(const AxisList& axes) const;  // number of coordinates on these axes
  // A coordinate on some axes as one number, row-major.
  int64_t IndexOn(const AxisList& axes, absl::Span<const int> coordinate) const;

  // --- Counts for one element and one coordinate on the axes that stay partial.
  int64_t terms() const { return terms_; }      // terms to reduce; 1 if nothing is reduced
  int64_t needers() const { return needers_; }  // ranks that need the result
  int64_t helper_count() const { return helper_count_; }
  bool moves() const { return moves_; }  // some element crosses between ranks

  // --- The indices of dimension d that the rank at `coordinate` has.
  IndexSet Held(int d, absl::Span<const int> coordinate) const;    // in the source layout
  IndexSet Result(int d, absl::Span<const int> coordinate) const;  // in the target layout
  // The indices of dimension d that ranks with `coordinate` on `axes` hold together.
  IndexSet HeldOver(int d, absl::Span<const int> coordinate, const AxisList& axes) const;

  // The number of elements that have a holder among the ranks that need them.
  int64_t ElementsInPlace() const;
  // Whether every rank holds all that it needs, in one box without strides.
  bool IsView() const;
  // Whether every rank has the same region in both layouts, so that terms are only reduced.
  bool KeepsRegions() const;
  // Whether the target is the source with axes exchanged: each rank's result is some rank's shard.
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

// The layout itself; for a scalar, its layout as one dimension of size 1.
Layout AtLeastOneDim(const Layout& layout);

// Sets `coordinate` to every coordinate on `axes` in turn, in row-major order, and calls fn() for
// each, until fn returns false. Returns whether fn always returned true. Restores `coordinate`.
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
