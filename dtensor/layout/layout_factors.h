// Helpers of layout.h's sources for the factors of one dimension.
#ifndef DTENSOR_LAYOUT_LAYOUT_FACTORS_H_
#define DTENSOR_LAYOUT_LAYOUT_FACTORS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"

namespace dtensor {

// Merges neighbouring factors that no axis splits; the result is empty if no factor is split.
DimLayout Merged(const DimLayout& dim);
// The canonical form: merged, without axes of size 1. Requires: valid factors.
DimLayout Canonical(const DeviceMesh& mesh, DimLayout dim);

// The product of the sizes of the factors from `first` on. Requires: first >= 1.
int64_t InnerSize(const DimLayout& dim, size_t first);

// "[dp,tp x 16]"
std::string DimToString(const DeviceMesh& mesh, const DimLayout& dim);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_FACTORS_H_
