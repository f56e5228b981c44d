// Layout: where every element of a tensor lies on a mesh. The only stored truth; placements are how
// users write and read it.
//
// Each tensor dimension of size n is a row-major product of factors, usually one. All factors but
// the outermost have a fixed size; the outermost is rounded up to ceil(n / product of the others),
// and indices >= n do not exist. Each factor has an ordered list of mesh axes that split it, major
// to minor: each axis splits in ceil chunks what the one before it left (or zigzag: 2P ceil chunks,
// rank r takes chunks r and 2P-1-r). The orders of placement.h are factorings:
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
// Canonical by construction: axes of size 1 vanish; neighbouring factors that nothing splits merge;
// a lone factor that nothing splits is dropped; partial axes ascend. So == implies equal regions.
// (Unequal layouts may have equal regions: moving between them moves nothing.)
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

// One mesh axis splitting what the splits before it left.
struct AxisSplit {
  int axis = 0;
  bool zigzag = false;
  friend bool operator==(const AxisSplit&, const AxisSplit&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const AxisSplit& s) {
    return H::combine(std::move(h), s.axis, s.zigzag);
  }
};

// One factor of a dimension. `size` is 0 for the outermost factor (derived from n), else >= 1;
// after canonicalising it is 1 only where it is split (and then coordinate 0 of each of its axes
// holds all).
struct LayoutFactor {
  int64_t size = 0;
  absl::InlinedVector<AxisSplit, 2> splits;  // major to minor
  friend bool operator==(const LayoutFactor&, const LayoutFactor&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const LayoutFactor& f) {
    return H::combine(std::move(h), f.size, f.splits);
  }
};

// The factors of one dimension, outermost first; empty when nothing splits it.
using DimLayout = absl::InlinedVector<LayoutFactor, 1>;

bool IsSplit(const DimLayout& dim);
AxisList AxesOf(const DimLayout& dim);  // every axis that splits it, outermost factor first
// The same without the splits on `axes`: factors that nothing splits any more merge.
DimLayout WithoutAxes(const DimLayout& dim, absl::Span<const int> axes);

// Where new splits of a dimension stand among those that it has.
enum class SplitPosition : uint8_t { kMinor, kMajor };

class Layout {
 public:
  // Of tensors: a Context refuses those of more dimensions.
  static constexpr int kMaxDims = 32;

  Layout() = default;  // a replicated scalar on a mesh of one rank

  // Everything replicated.
  static Layout Replicated(const DeviceMesh& mesh, int ndim);
  // Negative dims count from the end. `shape` is needed by cyclic orders and by the checks. If
  // several axes shard one dimension, each axis deals out, in its own order, what the axis before
  // it left. Contiguous and zigzag orders can always be combined; in addition a dimension may have
  // one unit, cyclic or block order (on one or several axes), provided that all other splits of
  // the dimension fall between its groups.
  // Errors: kInvalidArgument for a wrong number of placements, a dim out of range, unlike partial
  // ops, a non-positive unit, rounds or block, a shape that no tensor has (dims.h), orders on one
  // dimension that no layout says exactly; the message names the axis and the remedy.
  static absl::StatusOr<Layout> FromPlacements(const DeviceMesh& mesh,
                                               absl::Span<const Placement> placements,
                                               absl::Span<const int64_t> shape);
  // From parts; canonicalises. `averaged` are those of the partial axes that average while the
  // others sum (op: kSum); with kAvg all of them do. Errors: kInvalidArgument for an axis that is
  // out of range or used twice, a factor size < 1, an outermost factor with a size of its own,
  // inner factors whose sizes multiply to more than kMaxElements (dims.h), an average beside
  // another op than a sum.
  static absl::StatusOr<Layout> Create(const DeviceMesh& mesh, absl::Span<const DimLayout> dims,
                                       absl::Span<const int> partial_axes = {},
                                       ReduceOp op = ReduceOp::kSum,
                                       absl::Span<const int> averaged = {});

  const DeviceMesh& mesh() const { return mesh_; }
  int ndim() const { return static_cast<int>(dims_.size()); }  // tensor dimensions
  absl::Span<const DimLayout> dims() const { return dims_; }
  const DimLayout& dim(int d) const { return dims_[d]; }
  absl::Span<const int> partial_axes() const { return partial_axes_; }  // ascending
  // kSum when there are no partial axes; kAvg also where some of them average and others sum.
  ReduceOp partial_op() const { return op_; }
  ReduceOp partial_op(int axis) const;  // of one of the partial axes
  AxisList averaged_axes() const;       // those of the partial axes whose op is kAvg, ascending
  // How terms combine, before the sums that are averages are divided: never kAvg.
  ReduceOp term_op() const { return averaged_ == 0 ? op_ : ReduceOp::kSum; }
  bool is_partial() const { return !partial_axes_.empty(); }
  bool is_replicated() const;  // on every axis

  enum class AxisUse : uint8_t { kReplicate, kShard, kPartial };
  AxisUse use(int axis) const;
  AxisList sharding_axes() const;    // ascending
  AxisList replicated_axes() const;  // ascending; axes of size 1 count as replicated

  // The same with one dimension's factors, or the partial axes, replaced. Errors: as Create; and
  // for a dimension that it has not.
  absl::StatusOr<Layout> WithDim(int d, const DimLayout& dim) const;
  absl::StatusOr<Layout> WithPartial(absl::Span<const int> axes, ReduceOp op = ReduceOp::kSum,
                                     absl::Span<const int> averaged = {}) const;
  // The same with `axes` taken from wherever they are and placed anew: as Replicate(), or in the
  // order given as splits of dimension d, after all others (kMinor) or before them (kMajor), by
  // Shard(d), Shard(d, zigzag), Shard(d, unit(u)) or Shard(d, block(b)). Negative d counts from the
  // end. So [cp:zigzag,tp] is [cp:zigzag] with a minor tp, or [tp] with a major cp in zigzag.
  // Where the dimension is dealt in groups (cyclic, block), new splits cut between its rounds: tp
  // beside striped cp is [tp x 2(cp)], which is the same at either position.
  // Errors: kInvalidArgument for another placement, a dimension out of range, axes that the mesh
  // lacks or that are given twice, and where other axes split the dimension so that no splits can
  // be added: in other groups than u, or for a block order in cyclic or block order, or in units
  // that are no multiple or part of a turn (b times the ranks of the axes).
  absl::StatusOr<Layout> WithAxes(absl::Span<const int> axes, const Placement& placement,
                                  SplitPosition position = SplitPosition::kMinor) const;
  // The layout of a gradient: Partial(sum) and Partial(avg) become Replicate, the rest stays.
  Layout Dual() const;

  // FromPlacements of the result is this layout. Errors: kInvalidArgument when placements cannot
  // say it (the order of axes is not mesh order, or two factors of one dimension are split in a way
  // that no ShardOrder names).
  absl::StatusOr<Placements> ToPlacements(absl::Span<const int64_t> shape) const;

  // The shape of a rank's local tensor: sizes of Regions(). Requires: shape.size() == ndim(), and
  // mesh().Contains(mesh_rank).
  Dims LocalShape(absl::Span<const int64_t> shape, int mesh_rank) const;

  std::string ToString() const;
  // The name of a group of axes stands for them all. Errors: kInvalidArgument, naming the part that
  // cannot be read.
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

// Reshaping one dimension's layout. `outer` and `inner` are the layouts of the two dimensions that
// a dimension of size n = outer_size * inner_size becomes.
//
// Cuts at a factor's boundary, or where every chunk of the outermost split is whole.
// Errors: kInvalidArgument when a shard would span the cut unevenly (redistribute first), for sizes
// that no tensor has (dims.h), and what Layout::Create refuses in `dim`.
absl::StatusOr<std::pair<DimLayout, DimLayout>> SplitDim(const DeviceMesh& mesh,
                                                         const DimLayout& dim, int64_t outer_size,
                                                         int64_t inner_size);
// The reverse: the layout of the row-major product of two dimensions.
// Errors: kInvalidArgument when `inner` is split in groups that do not divide inner_size, as
// unit(3) of 7: each copy of it would end in a group cut short, which factors cannot say; and for
// sizes that no tensor has (dims.h).
absl::StatusOr<DimLayout> JoinDims(const DimLayout& outer, int64_t outer_size,
                                   const DimLayout& inner, int64_t inner_size);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_H_
