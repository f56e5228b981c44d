// MovingCost: an estimate in closed form.
#include <cstddef>

#include "dtensor/rules/op_rule.h"

namespace dtensor {
namespace {

double AxesSize(const DeviceMesh& mesh, absl::Span<const int> axes) {
  double size = 1;
  for (int axis : axes) size *= mesh.axis_size(axis);
  return size;
}

// The fraction of what a rank needs in a dimension that it already holds, if sizes divide evenly.
// If the splits are unrelated: the fraction that a random shard would hold.
double Overlap(const DeviceMesh& mesh, const DimLayout& from, const DimLayout& to) {
  if (from == to || !IsSplit(from)) return 1;
  size_t shared = 0;  // number of equal leading splits, if both have a single factor
  if (from.size() == 1 && to.size() == 1) {
    const auto& a = from[0].splits;
    const auto& b = to[0].splits;
    while (shared < a.size() && shared < b.size() && a[shared] == b[shared]) ++shared;
    if (shared == a.size()) return 1;
  }
  double held = 1;
  const AxisList axes = AxesOf(from);
  for (size_t i = shared; i < axes.size(); ++i) held /= mesh.axis_size(axes[i]);
  return held;
}

}  // namespace

double MovingCost(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                  DType dtype) {
  if (from == to) return 0;
  const DeviceMesh& mesh = to.mesh();
  const double bytes = static_cast<double>(NumElements(shape)) * SizeOf(dtype);
  double terms = 1, kept = 1;  // Partial axes that are reduced, and that stay
  for (int axis : from.partial_axes()) {
    (to.use(axis) == Layout::AxisUse::kPartial ? kept : terms) *= mesh.axis_size(axis);
  }
  const double copies =
      mesh.size() / AxesSize(mesh, to.sharding_axes()) / kept;  // of each element in `to`
  if (terms > 1) return bytes * kept * (terms - 1 + copies - 1);
  double overlap = 1;
  for (int d = 0; d < to.ndim(); ++d) overlap *= Overlap(mesh, from.dim(d), to.dim(d));
  return bytes * kept * copies * (1 - overlap);
}

}  // namespace dtensor
