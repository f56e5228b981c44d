// Layout: where every element of a tensor is on a mesh. Tensors store only their layout; placements
// are a way to write and read layouts.
//
// Each tensor dimension of size n is a row-major product of factors, usually one. All factors but
// the outermost have a fixed size; the outermost is rounded up to ceil(n / product of the others),
// and indices >= n do not exist. Each factor has an ordered list of mesh axes that split it, major
// to minor: each axis splits the share that the axis before it left, in ceil chunks (or in zigzag:
// 2P ceil chunks, rank r takes chunks r and 2P-1-r). The orders of placement.h as factors:
//
//   contiguous  (n : axis)                    unit(u)    (n/u : axis, u)
//   cyclic(k)   (k, ceil(n/k) : axis)         block(b)   (n/(P*b), P : axis, b)
//   zigzag      (n : axis zigzag)
//
// The layout also lists the axes on which the tensor is Partial; on all remaining axes it is
// replicated. Gathering a dimension over its minor axis therefore leaves exactly the layout of its
// major axes. All Partial axes share one op, except that sum and avg may be mixed: the value is
// then the sum, over the axes with op sum, of the average over the axes with op avg.
//
// Layouts are always in canonical form: axes of size 1 are left out; neighbouring factors that no
// axis splits are merged; a single factor that no axis splits is dropped; partial axes ascend. So
// equal layouts have equal regions. (Layouts that are not equal may have equal regions too;
// redistributing between them moves nothing.)
//
// Text: one bracket per dimension, factors joined by " x ", outermost first, then the partial axes:
//   [dp,tp] []            dimension 0 split by dp, then tp; dimension 1 whole
//   [tp x 16]             unit(16)             [_ x 4(tp)]       cyclic(2) of n = 8
//   [_ x 2(tp) x 3]       block(3) on 2 ranks  [cp:zigzag]       zigzag
//   [] [] P(sum: dp,tp)   partial on two axes          [] P(sum: dp) P(avg: tp)   a sum of averages
// A scalar's text has no brackets; a replicated scalar is "scalar".
#ifndef DTENSOR_LAYOUT_LAYOUT_H_
#define DTENSOR_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace DTENSOR_EXPORT dtensor {

// A split by one mesh axis, of the share that the splits before it left.
struct AxisSplit {
  int axis = 0;
  bool zigzag = false;
  friend bool operator==(const AxisSplit&, const AxisSplit&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AxisSplit& s) {
    return H::combine(std::move(h), s.axis, s.zigzag);
  }
};

// One factor of a dimension. `size` is 0 for the outermost factor (its size is derived from n),
// else >= 1. In canonical form a factor of size 1 is split (and then coordinate 0 of each of its
// axes holds everything).
struct LayoutFactor {
  int64_t size = 0;
  absl::InlinedVector<AxisSplit, 2> splits;  // major to minor
  friend bool operator==(const LayoutFactor&, const LayoutFactor&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const LayoutFactor& f) {
    return H::combine(std::move(h), f.size, f.splits);
  }
};

// The factors of one dimension, outermost first; empty if no axis splits it.
using DimLayout = absl::InlinedVector<LayoutFactor, 1>;

bool IsSplit(const DimLayout& dim);
AxisList AxesOf(const DimLayout& dim);  // every axis that splits it, outermost factor first
// The same without the splits on `axes`; factors that no axis splits any more are merged.
DimLayout WithoutAxes(const DimLayout& dim, absl::Span<const int> axes);

// Whether new splits of a dimension go after its other splits (kMinor) or before them (kMajor).
enum class SplitPosition : uint8_t { kMinor, kMajor };

class Layout {
 public:
  // Limit for tensors: a Context refuses tensors with more dimensions.
  static constexpr int kMaxDims = 32;

  Layout() = default;  // a replicated scalar on a mesh of one rank

  // Everything replicated.
  static Layout Replicated(const DeviceMesh& mesh, int ndim);
  // Negative dims count from the end. `shape` is needed by cyclic orders and by the checks. If
  // several axes shard one dimension, each axis deals out, in its own order, what the axis before
  // it left. Contiguous and zigzag orders can always be combined; in addition a dimension may have
  // one unit, cyclic or block order (on one or several axes), provided that all other splits of
  // the dimension fall between its groups.
  // Errors: kInvalidArgument for a wrong number of placements, a dim out of range, partial ops that
  // cannot be combined, a unit, number of rounds or block below 1, a shape that no tensor may have
  // (dims.h), or orders on one dimension that no layout can express exactly; the message names the
  // axis and the remedy.
  static absl::StatusOr<Layout> FromPlacements(const DeviceMesh& mesh,
                                               absl::Span<const Placement> placements,
                                               absl::Span<const int64_t> shape);
  // Makes a layout from its parts, in canonical form. `averaged` lists the partial axes with op avg
  // if the others have op sum (`op` is kSum); if `op` is kAvg, all axes average. Errors:
  // kInvalidArgument for an axis that is out of range or used twice, a factor size < 1, an
  // outermost factor whose size is not 0, inner factors whose sizes multiply to more than
  // kMaxElements (dims.h), or averaged axes beside an op other than sum.
  static absl::StatusOr<Layout> Create(const DeviceMesh& mesh, absl::Span<const DimLayout> dims,
                                       absl::Span<const int> partial_axes = {},
                                       ReduceOp op = ReduceOp::kSum,
                                       absl::Span<const int> averaged = {});

  const DeviceMesh& mesh() const { return mesh_; }
  int ndim() const { return static_cast<int>(dims_.size()); }  // tensor dimensions
  absl::Span<const DimLayout> dims() const { return dims_; }
  const DimLayout& dim(int d) const { return dims_[d]; }
  absl::Span<const int> partial_axes() const { return partial_axes_; }  // ascending
  // kSum if there are no partial axes; kAvg also if only some of them average.
  ReduceOp partial_op() const { return op_; }
  ReduceOp partial_op(int axis) const;  // of one of the partial axes
  AxisList averaged_axes() const;       // those of the partial axes whose op is kAvg, ascending
  // The op that combines terms. Never kAvg: averages are sums that are divided afterwards.
  ReduceOp term_op() const { return averaged_ == 0 ? op_ : ReduceOp::kSum; }
  bool is_partial() const { return !partial_axes_.empty(); }
  bool is_replicated() const;  // on every axis

  enum class AxisUse : uint8_t { kReplicate, kShard, kPartial };
  AxisUse use(int axis) const;
  AxisList sharding_axes() const;    // ascending
  AxisList replicated_axes() const;  // ascending; axes of size 1 count as replicated

  // The same layout with one dimension's factors, or the partial axes, replaced. Errors: as Create;
  // also kInvalidArgument for a dimension that it does not have.
  absl::StatusOr<Layout> WithDim(int d, const DimLayout& dim) const;
  absl::StatusOr<Layout> WithPartial(absl::Span<const int> axes, ReduceOp op = ReduceOp::kSum,
                                     absl::Span<const int> averaged = {}) const;
  // The same layout with `axes` removed from where they are and placed anew: as Replicate(), or as
  // splits of dimension d in the order given, after all others (kMinor) or before them (kMajor), by
  // Shard(d), Shard(d, zigzag), Shard(d, unit(u)) or Shard(d, block(b)). Negative d counts from the
  // end. For example, [cp:zigzag,tp] is [cp:zigzag] with a minor tp, or [tp] with a major cp in
  // zigzag. If the dimension is dealt out in groups (cyclic, block), new splits fall between its
  // rounds: tp added to striped cp gives [tp x 2(cp)], for either position.
  // Errors: kInvalidArgument for another placement, a dimension out of range, axes that the mesh
  // does not have or that are given twice, and if the existing splits of the dimension do not allow
  // it: for unit(u), u > 1, and for block(b) these are splits in cyclic or block order; for unit(u)
  // also splits that are not in groups of a multiple of u; for block(b) also units that neither
  // divide a turn (b times the product of the axes' sizes) nor are multiples of it.
  absl::StatusOr<Layout> WithAxes(absl::Span<const int> axes, const Placement& placement,
                                  SplitPosition position = SplitPosition::kMinor) const;
  // The layout on another mesh that shards the same dimensions over the axes of the same names.
  // Axes that only one of the meshes has replicate it, and so do partial axes: a move between
  // meshes reduces them. Errors: as Create.
  absl::StatusOr<Layout> OnMesh(const DeviceMesh& mesh) const;
  // The layout of a gradient: Partial(sum) and Partial(avg) become Replicate, the rest stays.
  Layout Dual() const;

  // The placements from which FromPlacements makes this layout. Errors: kInvalidArgument if
  // placements cannot express it (the order of axes is not mesh order, or two factors of one
  // dimension are split in a way that no ShardOrder names).
  absl::StatusOr<Placements> ToPlacements(absl::Span<const int64_t> shape) const;

  // The shape of a rank's local tensor: the sizes of Regions(). Requires: shape.size() == ndim(),
  // and mesh().Contains(mesh_rank).
  Dims LocalShape(absl::Span<const int64_t> shape, int mesh_rank) const;

  std::string ToString() const;
  // Reads what ToString prints. The name of a group stands for all of its axes. Errors:
  // kInvalidArgument, naming the part that cannot be read.
  static absl::StatusOr<Layout> Parse(const DeviceMesh& mesh, absl::string_view text);

  friend bool operator==(const Layout&, const Layout&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Layout& l) {
    return H::combine(std::move(h), l.mesh_, l.dims_, l.partial_axes_, l.op_, l.averaged_);
  }

 private:
  DeviceMesh mesh_;
  absl::InlinedVector<DimLayout, 4> dims_;
  AxisList partial_axes_;
  ReduceOp op_ = ReduceOp::kSum;
  uint32_t averaged_ = 0;  // bit a: partial axis a averages; then op_ is kAvg
};
static_assert(DeviceMesh::kMaxAxes <= 32);

// Reshapes one dimension's layout: returns the layouts of the two dimensions, outer and inner, into
// which a dimension of size n = outer_size * inner_size is split. The cut must be at a boundary
// between factors, or at a place where it leaves the chunks of the outermost split whole. Errors:
// kInvalidArgument if a shard would span the cut unevenly (redistribute first), for sizes that no
// tensor may have (dims.h), and what Layout::Create refuses in `dim`.
absl::StatusOr<std::pair<DimLayout, DimLayout>> SplitDim(const DeviceMesh& mesh,
                                                         const DimLayout& dim, int64_t outer_size,
                                                         int64_t inner_size);
// The reverse: the layout of the row-major product of two dimensions.
// Errors: kInvalidArgument if `inner` is split in groups that do not divide inner_size, as unit(3)
// of 7: each copy of it would end in a shorter group, which factors cannot express; and for sizes
// that no tensor may have (dims.h).
absl::StatusOr<DimLayout> JoinDims(const DimLayout& outer, int64_t outer_size,
                                   const DimLayout& inner, int64_t inner_size);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_H_
