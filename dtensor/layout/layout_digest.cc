#include "dtensor/layout/layout_digest.h"

namespace dtensor {

void AddLayout(const Layout& layout, Digest& digest) {
  digest.Add(layout.ndim());
  for (const DimLayout& dim : layout.dims()) {
    digest.Add(static_cast<int64_t>(dim.size()));
    for (const LayoutFactor& factor : dim) {
      digest.Add(factor.size);
      digest.Add(static_cast<int64_t>(factor.splits.size()));
      for (const AxisSplit& split : factor.splits) digest.Add(2 * split.axis + split.zigzag);
    }
  }
  digest.Add(static_cast<int64_t>(layout.term_op()));
  for (int axis : layout.averaged_axes()) digest.Add(-1 - axis);
  digest.Add(static_cast<int64_t>(layout.partial_axes().size()));
  for (int axis : layout.partial_axes()) digest.Add(axis);
}

}  // namespace dtensor
