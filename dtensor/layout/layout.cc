#include "dtensor/layout/layout.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/chunks.h"
#include "dtensor/layout/layout_factors.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Keeps track of the axes used so far, so that a second use is refused.
class UsedAxes {
 public:
  explicit UsedAxes(const DeviceMesh& mesh) : mesh_(mesh), used_(mesh.num_axes(), false) {}

  absl::Status Use(int axis) {
    if (axis < 0 || axis >= mesh_.num_axes()) {
      return InvalidArgument(
          {"layout: the mesh ", mesh_.ToString(), " has no axis number ", absl::StrCat(axis)});
    }
    if (used_[axis]) {
      return InvalidArgument({"layout: axis \"", mesh_.axis_name(axis), "\" of the mesh ",
                              mesh_.ToString(), " is used twice; an axis splits one dimension, or ",
                              "is partial, once"});
    }
    used_[axis] = true;
    return absl::OkStatus();
  }

 private:
  const DeviceMesh& mesh_;
  absl::InlinedVector<bool, 8> used_;
};

absl::Status CheckFactorSizes(const DimLayout& dim, int d) {
  if (!dim.empty() && dim[0].size != 0) {
    return InvalidArgument({"layout: the outermost factor of dimension ", absl::StrCat(d),
                            " has size ", absl::StrCat(dim[0].size),
                            "; it follows from the dimension's size: write 0"});
  }
  Dims sizes;
  for (size_t i = 1; i < dim.size(); ++i) {
    sizes.push_back(dim[i].size);
    if (dim[i].size < 1 || NumElements(sizes) > kMaxElements) {
      return InvalidArgument({"layout: factor ", absl::StrCat(i), " of dimension ", absl::StrCat(d),
                              " has size ", absl::StrCat(dim[i].size),
                              "; sizes are positive and their product is at most 2^56"});
    }
  }
  return absl::OkStatus();
}

absl::Status UseAxes(const DimLayout& dim, UsedAxes& used) {
  for (const LayoutFactor& factor : dim) {
    for (const AxisSplit& split : factor.splits) DT_RETURN_IF_ERROR(used.Use(split.axis));
  }
  return absl::OkStatus();
}

// Averages may only be combined with sums.
absl::Status CheckAveraged(absl::Span<const int> partial_axes, ReduceOp op,
                           absl::Span<const int> averaged) {
  for (int axis : averaged) {
    if (absl::c_linear_search(partial_axes, axis)) continue;
    return InvalidArgument(
        {"layout: axis ", absl::StrCat(axis), " averages, and is not among the partial axes"});
  }
  if (averaged.empty() || op == ReduceOp::kSum || op == ReduceOp::kAvg) return absl::OkStatus();
  return InvalidArgument({"layout: P(", ToString(op),
                          ") stands beside P(avg); only a sum may: ", "reduce one of them first"});
}

// Of a factor's positions: how many a rank holds, and how many of these are before a given one.
struct Held {
  int64_t size, before;
};

int64_t Overlap(Chunk chunk, int64_t end) {
  return std::clamp<int64_t>(end - chunk.begin, 0, chunk.size());
}

Held HeldOf(const Layout& layout, const LayoutFactor& factor, Held held,
            absl::Span<const int> coordinate) {
  for (const AxisSplit& split : factor.splits) {
    const Share share = ShareAt(held.size, layout.mesh().axis_size(split.axis), split.zigzag,
                                coordinate[split.axis]);
    held = {share.size(), Overlap(share.low, held.before) + Overlap(share.high, held.before)};
  }
  return held;
}

// The number of indices below n that a rank holds of the factors from `first` on. The first of
// these has size `size`, the others their own. It counts digit by digit, with one digit for each
// factor: first all indices with a smaller leading digit than n, then those with the same one.
int64_t CountHeld(const Layout& layout, const DimLayout& dim, size_t first, int64_t size, int64_t n,
                  absl::Span<const int> coordinate) {
  if (first == dim.size()) return n;  // no digits: one index, 0, which is below 1
  const int64_t below = InnerSize(dim, first + 1);
  const int64_t digit = n / below, rest = n % below;
  const Held held = HeldOf(layout, dim[first], {size, digit}, coordinate);
  const int64_t next = first + 1 < dim.size() ? dim[first + 1].size : 1;
  int64_t count = 0;
  if (held.before > 0) {
    count = held.before * CountHeld(layout, dim, first + 1, next, below, coordinate);
  }
  const bool shares_digit =
      rest > 0 && HeldOf(layout, dim[first], {size, digit + 1}, coordinate).before > held.before;
  return shares_digit ? count + CountHeld(layout, dim, first + 1, next, rest, coordinate) : count;
}

}  // namespace

bool IsSplit(const DimLayout& dim) {
  return absl::c_any_of(dim, [](const LayoutFactor& factor) { return !factor.splits.empty(); });
}

AxisList AxesOf(const DimLayout& dim) {
  AxisList axes;
  for (const LayoutFactor& factor : dim) {
    for (const AxisSplit& split : factor.splits) axes.push_back(split.axis);
  }
  return axes;
}

DimLayout WithoutAxes(const DimLayout& dim, absl::Span<const int> axes) {
  DimLayout out = dim;
  for (LayoutFactor& factor : out) {
    const auto gone = [&](const AxisSplit& split) {
      return absl::c_linear_search(axes, split.axis);
    };
    factor.splits.erase(std::remove_if(factor.splits.begin(), factor.splits.end(), gone),
                        factor.splits.end());
  }
  return Merged(out);
}

int64_t InnerSize(const DimLayout& dim, size_t first) {
  int64_t size = 1;
  for (size_t i = first; i < dim.size(); ++i) size *= dim[i].size;
  return size;
}

DimLayout Merged(const DimLayout& dim) {
  DimLayout merged;
  if (!IsSplit(dim)) return merged;
  for (const LayoutFactor& factor : dim) {
    const bool whole = factor.splits.empty() && !merged.empty();
    if (whole && factor.size == 1) continue;
    if (whole && merged.back().splits.empty()) {
      merged.back().size *= factor.size;  // the outermost stays 0: derived
    } else {
      merged.push_back(factor);
    }
  }
  return merged;
}

DimLayout Canonical(const DeviceMesh& mesh, DimLayout dim) {
  const auto is_one = [&](const AxisSplit& split) { return mesh.axis_size(split.axis) == 1; };
  for (LayoutFactor& factor : dim) {
    factor.splits.erase(std::remove_if(factor.splits.begin(), factor.splits.end(), is_one),
                        factor.splits.end());
  }
  return Merged(dim);
}

Layout Layout::Replicated(const DeviceMesh& mesh, int ndim) {
  Layout layout;
  layout.mesh_ = mesh;
  layout.dims_.resize(ndim);
  return layout;
}

absl::StatusOr<Layout> Layout::Create(const DeviceMesh& mesh, absl::Span<const DimLayout> dims,
                                      absl::Span<const int> partial_axes, ReduceOp op,
                                      absl::Span<const int> averaged) {
  DT_RETURN_IF_ERROR(CheckAveraged(partial_axes, op, averaged));
  UsedAxes used(mesh);
  Layout layout = Replicated(mesh, static_cast<int>(dims.size()));
  for (int d = 0; d < layout.ndim(); ++d) {
    DT_RETURN_IF_ERROR(CheckFactorSizes(dims[d], d));
    DT_RETURN_IF_ERROR(UseAxes(dims[d], used));
    layout.dims_[d] = Canonical(mesh, dims[d]);
  }
  for (int axis : partial_axes) {
    DT_RETURN_IF_ERROR(used.Use(axis));
    if (mesh.axis_size(axis) == 1) continue;
    layout.partial_axes_.push_back(axis);
    const bool averages = op == ReduceOp::kAvg || absl::c_linear_search(averaged, axis);
    if (averages) layout.averaged_ |= uint32_t{1} << axis;
  }
  absl::c_sort(layout.partial_axes_);
  if (layout.is_partial()) layout.op_ = layout.averaged_ == 0 ? op : ReduceOp::kAvg;
  return layout;
}

ReduceOp Layout::partial_op(int axis) const {
  return averaged_ == 0 || averaged_ >> axis & 1 ? op_ : ReduceOp::kSum;
}

AxisList Layout::averaged_axes() const {
  AxisList axes;
  for (int axis : partial_axes_) {
    if (averaged_ >> axis & 1) axes.push_back(axis);
  }
  return axes;
}

bool Layout::is_replicated() const { return !is_partial() && absl::c_none_of(dims_, IsSplit); }

Layout::AxisUse Layout::use(int axis) const {
  if (absl::c_linear_search(partial_axes_, axis)) return AxisUse::kPartial;
  for (const DimLayout& dim : dims_) {
    if (absl::c_linear_search(AxesOf(dim), axis)) return AxisUse::kShard;
  }
  return AxisUse::kReplicate;
}

AxisList Layout::sharding_axes() const {
  AxisList axes;
  for (const DimLayout& dim : dims_) {
    for (int axis : AxesOf(dim)) axes.push_back(axis);
  }
  absl::c_sort(axes);
  return axes;
}

AxisList Layout::replicated_axes() const {
  AxisList axes;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (use(axis) == AxisUse::kReplicate) axes.push_back(axis);
  }
  return axes;
}

absl::StatusOr<Layout> Layout::WithDim(int d, const DimLayout& dim) const {
  if (d < 0 || d >= ndim()) {
    return InvalidArgument({"Layout::WithDim: ", ToString(), " has no dimension ", absl::StrCat(d),
                            "; give one from 0 to ", absl::StrCat(ndim() - 1)});
  }
  absl::InlinedVector<DimLayout, 4> dims = dims_;
  dims[d] = dim;
  return Create(mesh_, dims, partial_axes_, term_op(), averaged_axes());
}

absl::StatusOr<Layout> Layout::WithPartial(absl::Span<const int> axes, ReduceOp op,
                                           absl::Span<const int> averaged) const {
  return Create(mesh_, dims_, axes, op, averaged);
}

absl::StatusOr<Layout> Layout::OnMesh(const DeviceMesh& mesh) const {
  std::vector<int> there(mesh_.num_axes(), -1);
  AxisList dropped;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    for (int other = 0; other < mesh.num_axes(); ++other) {
      if (mesh.axis_name(other) == mesh_.axis_name(axis)) there[axis] = other;
    }
    if (there[axis] < 0) dropped.push_back(axis);
  }
  std::vector<DimLayout> dims;
  for (const DimLayout& dim : dims_) {
    dims.push_back(WithoutAxes(dim, dropped));
    for (LayoutFactor& factor : dims.back()) {
      for (AxisSplit& split : factor.splits) split.axis = there[split.axis];
    }
  }
  return Create(mesh, dims);
}

Layout Layout::Dual() const {
  Layout dual = *this;
  if (op_ != ReduceOp::kSum && op_ != ReduceOp::kAvg) return dual;
  dual.partial_axes_.clear();
  dual.op_ = ReduceOp::kSum;
  dual.averaged_ = 0;
  return dual;
}

Dims Layout::LocalShape(absl::Span<const int64_t> shape, int mesh_rank) const {
  DT_REQUIRE(static_cast<int>(shape.size()) == ndim(),
             "Layout::LocalShape: give a shape with as many dimensions as the layout has");
  Dims local(shape.begin(), shape.end());
  const absl::InlinedVector<int, 4> coordinate = mesh_.Coordinate(mesh_rank);
  for (int d = 0; d < ndim(); ++d) {
    if (dims_[d].empty()) continue;
    const int64_t outermost = CeilDiv(shape[d], InnerSize(dims_[d], 1));
    local[d] = CountHeld(*this, dims_[d], 0, outermost, shape[d], coordinate);
  }
  return local;
}

}  // namespace dtensor
