#include "dtensor/transition.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "dtensor/chunks.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using CoordinateVector = absl::InlinedVector<int, 4>;

// For each axis of the mesh the dimension that it shards, or else kReplicate or kPartial.
AxisList DimOfAxes(const Layout& layout) {
  AxisList dims(layout.mesh().rank_of_axes(), Transition::kReplicate);
  for (int axis : layout.partial_axes()) dims[axis] = Transition::kPartial;
  for (int d = 0; d < layout.rank(); ++d) {
    for (const Factor& factor : layout.dim(d)) {
      for (const Split& split : factor.splits) dims[split.axis] = d;
    }
  }
  return dims;
}

Layout AtLeastOneDim(const Layout& layout) {
  if (layout.rank() > 0) return layout;
  auto result =
      Layout::Create(layout.mesh(), {DimLayout()}, layout.partial_axes(), layout.partial_op());
  DT_CHECK(result.ok());
  return *std::move(result);
}

// Whether `axis` splits the same positions alike in both layouts of a dimension, as their texts
// tell.
bool SplitsAlike(const DimLayout& a, const DimLayout& b, int axis) {
  if (a.size() != b.size()) return false;
  for (size_t f = 0; f < a.size(); ++f) {
    if (a[f].size != b[f].size) return false;
  }
  for (size_t f = 0; f < a.size(); ++f) {
    for (size_t s = 0; s < std::min(a[f].splits.size(), b[f].splits.size()); ++s) {
      if (a[f].splits[s] != b[f].splits[s]) break;
      if (a[f].splits[s].axis == axis) return true;
    }
  }
  return false;
}

// Whether the target only cuts what a rank holds in the source into intervals of positions.
bool CutsPositions(const DimLayout& source, const DimLayout& target) {
  if (target.empty()) return source.empty();
  if (!source.empty() && source.size() != target.size()) return false;
  for (size_t f = 0; f < target.size(); ++f) {
    const Factor kept = source.empty() ? Factor{target[f].size, {}} : source[f];
    const size_t common = kept.splits.size();
    if (kept.size != target[f].size || common > target[f].splits.size()) return false;
    if (f > 0 && common < target[f].splits.size()) return false;
    for (size_t s = 0; s < target[f].splits.size(); ++s) {
      if (s < common ? kept.splits[s] != target[f].splits[s] : target[f].splits[s].zigzag)
        return false;
    }
  }
  return true;
}

}  // namespace

Transition::Transition(const Layout& from, const Layout& to, absl::Span<const int64_t> shape)
    : source_(AtLeastOneDim(from)), target_(AtLeastOneDim(to)), shape_(shape.begin(), shape.end()) {
  is_scalar_ = shape.empty();
  if (is_scalar_) shape_.push_back(1);
  elements_ = NumElements(shape_);
  dims_.resize(shape_.size());
  FindRoles(to);
  terms_ = SizeOf(reduced_);
  helper_count_ = SizeOf(helpers_);
  needers_ = helper_count_ * SizeOf(gathered_);
  ChoosePivot();
}

void Transition::FindRoles(const Layout& to) {
  source_dim_ = DimOfAxes(source_);
  target_dim_ = DimOfAxes(target_);
  if (to.partial_op() == ReduceOp::kAvg) {
    AxisList kept;
    for (int axis : to.partial_axes()) {
      if (source_dim_[axis] == kPartial) {
        kept.push_back(axis);
      } else {
        target_dim_[axis] = kReplicate;
      }
    }
    target_ = target_.WithPartial(kept, ReduceOp::kAvg).value();
  }
  for (int axis = 0; axis < source_.mesh().rank_of_axes(); ++axis) {
    if (source_.mesh().axis_size(axis) > 1) AddRoles(axis);
  }
}

void Transition::AddRoles(int axis) {
  const int source = source_dim_[axis], target = target_dim_[axis];
  if (source == kPartial && target != kPartial) reduced_.push_back(axis);
  if (source < 0 && target == kReplicate) helpers_.push_back(axis);
  if (source == kReplicate && target >= 0) sliced_.push_back(axis);
  if (source >= 0 && target == kReplicate) {
    gathered_.push_back(axis);
    dims_[source].gathered.push_back(axis);
  }
  if (source != kPartial && target == kPartial) {
    created_.push_back(axis);
    (source >= 0 ? dims_[source].created : created_from_replicas_).push_back(axis);
  }
  if (source >= 0 && target >= 0 && MovesBetween(axis, source, target)) moved_.push_back(axis);
}

bool Transition::MovesBetween(int axis, int source_dim, int target_dim) const {
  if (elements_ == 0) return false;
  CoordinateVector coordinate(source_.mesh().rank_of_axes(), 0);
  if (source_dim != target_dim) {
    // Some element disagrees, unless coordinate 0 has everything in both layouts.
    coordinate[axis] = 1;
    return !Over(source_, source_dim, coordinate, {axis}).empty() ||
           !Over(target_, target_dim, coordinate, {axis}).empty();
  }
  if (SplitsAlike(source_.dim(source_dim), target_.dim(source_dim), axis)) return false;
  return !ForEachCoordinate(source_.mesh(), {axis}, absl::MakeSpan(coordinate), [&] {
    return Over(source_, source_dim, coordinate, {axis}) ==
           Over(target_, source_dim, coordinate, {axis});
  });
}

// X alone moves needers * terms messages for each element, less one for each term that a needer
// holds itself. Where that is no more than the owner's way, one round is better than two.
void Transition::ChoosePivot() {
  if (reduced_.empty() || needers_ == 1 || elements_ == 0) return;
  const bool alone_is_least =
      moved_.empty() && terms_ * needers_ - helper_count_ <= terms_ + needers_ - 2;
  if (alone_is_least) return;
  pivot_ = true;
  ChooseSplitDim();
}

// The dimension that the helpers split most evenly; of those the outermost, whose parts have the
// longest contiguous runs. Sizes are estimates, from values that all ranks know alike.
void Transition::ChooseSplitDim() {
  double least = 2;  // above every share of the busiest helper
  for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
    const int64_t ranks =
        SizeOf(AxesOf(target_.dim(d))) * SizeOf(dims_[d].gathered) * SizeOf(dims_[d].created);
    const int64_t size = CeilDiv(shape_[d], ranks);
    const double busiest = static_cast<double>(CeilDiv(size, helper_count_)) / size;
    if (busiest >= least) continue;
    least = busiest;
    split_dim_ = d;
  }
}

bool Transition::SendsAlong(int axis) const {
  return absl::c_linear_search(moved_, axis) || (!pivot_ && absl::c_linear_search(gathered_, axis));
}

bool Transition::AscendsAlong(int axis) const {
  return absl::c_linear_search(source_.dim(source_dim_[axis])[0].splits, Split{axis, false});
}

IndexSet Transition::Held(int d, absl::Span<const int> coordinate) const {
  return DimRegion(source_, d, shape_[d], coordinate);
}

IndexSet Transition::Result(int d, absl::Span<const int> coordinate) const {
  return DimRegion(target_, d, shape_[d], coordinate);
}

bool Transition::HoldsIdentity(absl::Span<const int> coordinate) const {
  return absl::c_any_of(created_from_replicas_, [&](int axis) { return coordinate[axis] != 0; });
}

IndexSet Transition::Needed(int d, absl::Span<const int> coordinate) const {
  if (HoldsIdentity(coordinate)) return {};
  IndexSet needed = Result(d, coordinate);
  if (dims_[d].created.empty()) return needed;
  return needed.Intersect(Over(source_, d, coordinate, dims_[d].created));
}

IndexSet Transition::OwnedByHelpers(int d, absl::Span<const int> coordinate) const {
  IndexSet owned = Needed(d, coordinate);
  if (dims_[d].gathered.empty()) return owned;
  return owned.Intersect(Over(source_, d, coordinate, dims_[d].gathered));
}

IndexSet Transition::Owned(int d, absl::Span<const int> coordinate) const {
  IndexSet owned = OwnedByHelpers(d, coordinate);
  if (d != split_dim_ || helper_count_ == 1) return owned;
  int64_t index = 0;
  for (int axis : helpers_) index = index * source_.mesh().axis_size(axis) + coordinate[axis];
  const Chunk part = ChunkAt(owned.size(), helper_count_, index);
  return owned.Slice(part.begin, part.end);
}

int64_t Transition::SizeOf(const AxisList& axes) const {
  int64_t size = 1;
  for (int axis : axes) size *= source_.mesh().axis_size(axis);
  return size;
}

// Dimensions are independent but for the axes that move between them: for each coordinate on the
// moved axes, the product over dimensions of what both layouts give to that coordinate.
int64_t Transition::ElementsInPlace() const {
  if (moved_.empty()) return elements_;
  CoordinateVector coordinate(source_.mesh().rank_of_axes(), 0);
  int64_t total = 0;
  ForEachCoordinate(source_.mesh(), moved_, absl::MakeSpan(coordinate), [&] {
    int64_t count = 1;
    for (int d = 0; d < static_cast<int>(shape_.size()) && count > 0; ++d) {
      const IndexSet source = Over(source_, d, coordinate, moved_);
      count *= source.Intersect(Over(target_, d, coordinate, moved_)).size();
    }
    total += count;
    return true;
  });
  return total;
}

bool Transition::IsView() const {
  if (!reduced_.empty() || !created_.empty() || !gathered_.empty() || !moved_.empty()) return false;
  for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
    if (!IsViewOf(d)) return false;
  }
  return true;
}

bool Transition::IsViewOf(int d) const {
  if (CutsPositions(source_.dim(d), target_.dim(d))) return true;
  AxisList axes = AxesOf(source_.dim(d));
  for (int axis : AxesOf(target_.dim(d))) {
    if (!absl::c_linear_search(axes, axis)) axes.push_back(axis);
  }
  CoordinateVector coordinate(source_.mesh().rank_of_axes(), 0);
  return ForEachCoordinate(source_.mesh(), axes, absl::MakeSpan(coordinate), [&] {
    const std::vector<Piece> pieces = Match(Held(d, coordinate), Result(d, coordinate));
    return pieces.empty() || (pieces.size() == 1 && pieces[0].count == 1);
  });
}

bool Transition::IsRelabelling() const {
  if (!reduced_.empty() || !created_.empty()) return false;
  for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
    DimLayout renamed = target_.dim(d);
    if (renamed.size() != source_.dim(d).size()) return false;
    for (size_t f = 0; f < renamed.size(); ++f) {
      if (renamed[f].splits.size() != source_.dim(d)[f].splits.size()) return false;
      for (size_t s = 0; s < renamed[f].splits.size(); ++s) {
        int& axis = renamed[f].splits[s].axis;
        const int known_as = source_.dim(d)[f].splits[s].axis;
        if (source_.mesh().axis_size(axis) == source_.mesh().axis_size(known_as)) axis = known_as;
      }
    }
    if (renamed != source_.dim(d)) return false;
  }
  return true;
}

bool Transition::SlicesDimOf(int axis) const {
  return absl::c_any_of(sliced_,
                        [&](int other) { return target_dim_[other] == source_dim_[axis]; });
}

}  // namespace dtensor
