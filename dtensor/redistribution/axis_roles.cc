#include "dtensor/redistribution/axis_roles.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using CoordinateVector = absl::InlinedVector<int, 4>;

// For each axis of the mesh: the dimension that it shards, else kReplicate or kPartial.
AxisList DimOfAxes(const Layout& layout) {
  AxisList dims(layout.mesh().num_axes(), AxisRoles::kReplicate);
  for (int axis : layout.partial_axes()) dims[axis] = AxisRoles::kPartial;
  for (int d = 0; d < layout.ndim(); ++d) {
    for (const LayoutFactor& factor : layout.dim(d)) {
      for (const AxisSplit& split : factor.splits) dims[split.axis] = d;
    }
  }
  return dims;
}

// Whether `axis` splits the same positions in the same way in both layouts of a dimension. Compares
// only their factors; returns false if these do not tell.
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

// Whether the target gives each rank one interval of the positions that it holds in the source.
bool CutsPositions(const DimLayout& source, const DimLayout& target) {
  if (target.empty()) return source.empty();
  if (!source.empty() && source.size() != target.size()) return false;
  for (size_t f = 0; f < target.size(); ++f) {
    const LayoutFactor kept = source.empty() ? LayoutFactor{target[f].size, {}} : source[f];
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

Layout AtLeastOneDim(const Layout& layout) {
  if (layout.ndim() > 0) return layout;
  auto result = Layout::Create(layout.mesh(), {DimLayout()}, layout.partial_axes(),
                               layout.term_op(), layout.averaged_axes());
  DT_CHECK(result.ok());
  return *std::move(result);
}

AxisRoles::AxisRoles(const Layout& from, const Layout& to, absl::Span<const int64_t> shape)
    : source_(AtLeastOneDim(from)), target_(AtLeastOneDim(to)), shape_(shape.begin(), shape.end()) {
  is_scalar_ = shape.empty();
  if (is_scalar_) shape_.push_back(1);
  elements_ = NumElements(shape_);
  FindRoles(to);
  terms_ = SizeOf(reduced_);
  helper_count_ = SizeOf(helpers_);
  needers_ = helper_count_ * SizeOf(gathered_);
  moves_ = elements_ > 0 && !(reduced_.empty() && gathered_.empty() && moved_.empty());
}

void AxisRoles::FindRoles(const Layout& to) {
  source_dim_ = DimOfAxes(source_);
  target_dim_ = DimOfAxes(target_);
  if (to.partial_op() == ReduceOp::kAvg) ReplicateNewAverages(to);
  for (int axis = 0; axis < source_.mesh().num_axes(); ++axis) {
    if (source_.mesh().axis_size(axis) > 1) AddRoles(axis);
  }
}

// In the target, replicates axes that become P(avg): the average of equal terms is the term.
void AxisRoles::ReplicateNewAverages(const Layout& to) {
  AxisList partial, averaged;
  for (int axis : to.partial_axes()) {
    const bool averages = to.partial_op(axis) == ReduceOp::kAvg;
    if (averages && source_dim_[axis] != kPartial) {
      target_dim_[axis] = kReplicate;
      continue;
    }
    partial.push_back(axis);
    if (averages) averaged.push_back(axis);
  }
  target_ = target_.WithPartial(partial, to.term_op(), averaged).value();
}

void AxisRoles::AddRoles(int axis) {
  const int source = source_dim_[axis], target = target_dim_[axis];
  if (source == kPartial && target != kPartial) reduced_.push_back(axis);
  if (source < 0 && target == kReplicate) helpers_.push_back(axis);
  if (source == kReplicate && target >= 0) sliced_.push_back(axis);
  if (source >= 0 && target == kReplicate) gathered_.push_back(axis);
  if (source != kPartial && target == kPartial) {
    created_.push_back(axis);
    (source >= 0 ? created_from_shards_ : created_from_replicas_).push_back(axis);
  }
  if (source >= 0 && target >= 0 && MovesBetween(axis, source, target)) moved_.push_back(axis);
}

bool AxisRoles::MovesBetween(int axis, int source_dim, int target_dim) const {
  if (elements_ == 0) return false;
  CoordinateVector coordinate(source_.mesh().num_axes(), 0);
  if (source_dim != target_dim) {
    // Some element moves, unless coordinate 0 has everything in both layouts.
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

bool AxisRoles::AscendsAlong(int axis) const {
  return absl::c_linear_search(source_.dim(source_dim_[axis])[0].splits, AxisSplit{axis, false});
}

IndexSet AxisRoles::Held(int d, absl::Span<const int> coordinate) const {
  return DimRegion(source_, d, shape_[d], coordinate);
}

IndexSet AxisRoles::Result(int d, absl::Span<const int> coordinate) const {
  return DimRegion(target_, d, shape_[d], coordinate);
}

IndexSet AxisRoles::HeldOver(int d, absl::Span<const int> coordinate, const AxisList& axes) const {
  return Over(source_, d, coordinate, axes);
}

int64_t AxisRoles::IndexOn(const AxisList& axes, absl::Span<const int> coordinate) const {
  int64_t index = 0;
  for (int axis : axes) index = index * source_.mesh().axis_size(axis) + coordinate[axis];
  return index;
}

int64_t AxisRoles::SizeOf(const AxisList& axes) const {
  int64_t size = 1;
  for (int axis : axes) size *= source_.mesh().axis_size(axis);
  return size;
}

// Dimensions are independent except for axes that move between them. So this is the sum over
// coordinates on the moved axes of a product over dimensions: of the number of indices that both
// layouts give to that coordinate.
int64_t AxisRoles::ElementsInPlace() const {
  if (moved_.empty()) return elements_;
  CoordinateVector coordinate(source_.mesh().num_axes(), 0);
  int64_t total = 0;
  ForEachCoordinate(source_.mesh(), moved_, absl::MakeSpan(coordinate), [&] {
    int64_t count = 1;
    for (int d = 0; d < static_cast<int>(shape_.size()) && count > 0; ++d) {
      const IndexSet source = Over(source_, d, coordinate, moved_);
      count *= source.CommonSize(Over(target_, d, coordinate, moved_));
    }
    total += count;
    return true;
  });
  return total;
}

bool AxisRoles::IsView() const {
  if (!reduced_.empty() || !created_.empty() || !gathered_.empty() || !moved_.empty()) return false;
  for (int d = 0; d < static_cast<int>(shape_.size()); ++d) {
    if (!IsViewOf(d)) return false;
  }
  return true;
}

bool AxisRoles::IsViewOf(int d) const {
  if (CutsPositions(source_.dim(d), target_.dim(d))) return true;
  AxisList axes = AxesOf(source_.dim(d));
  for (int axis : AxesOf(target_.dim(d))) {
    if (!absl::c_linear_search(axes, axis)) axes.push_back(axis);
  }
  CoordinateVector coordinate(source_.mesh().num_axes(), 0);
  return ForEachCoordinate(source_.mesh(), axes, absl::MakeSpan(coordinate), [&] {
    const std::vector<MatchedRun> pieces =
        MatchIndexSets(Held(d, coordinate), Result(d, coordinate));
    return pieces.empty() || (pieces.size() == 1 && pieces[0].count == 1);
  });
}

bool AxisRoles::KeepsRegions() const {
  const auto cuts = [this](int axis) { return target_dim_[axis] >= 0; };
  return moved_.empty() && gathered_.empty() && sliced_.empty() && created_.empty() &&
         absl::c_none_of(reduced_, cuts);
}

bool AxisRoles::IsRelabelling() const {
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

bool AxisRoles::SlicesDimOf(int axis) const {
  return absl::c_any_of(sliced_,
                        [&](int other) { return target_dim_[other] == source_dim_[axis]; });
}

}  // namespace dtensor
