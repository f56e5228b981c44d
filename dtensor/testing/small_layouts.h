// For tests of meshes and layouts: every small layout, and what ranks hold by the words of
// layout.h, one index at a time.
#ifndef DTENSOR_TESTING_SMALL_LAYOUTS_H_
#define DTENSOR_TESTING_SMALL_LAYOUTS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor {

// Fails the test unless `text` is a mesh.
DeviceMesh MeshOf(const std::string& text);

// The meshes of 1, 2, 3, 4, 2x2 and 2x3 ranks, and one with an axis of size 1 among others.
std::vector<DeviceMesh> SmallMeshes();

// Every way to split one dimension over some of `axes`, contiguous and zigzag, in every order, by
// factors with inner sizes from a short list; whole first. Not canonical.
std::vector<DimLayout> SmallDimLayoutsOver(const std::vector<int>& axes);
std::vector<DimLayout> SmallDimLayouts(const DeviceMesh& mesh);  // of all its axes

// Deals `list` to `parts` ranks in ceil chunks, contiguous or zigzag; returns what rank `index`
// gets.
std::vector<int64_t> DealByHand(const std::vector<int64_t>& list, int64_t parts, bool zigzag,
                                int64_t index);

// What the rank at `coordinate` holds of a dimension of size n.
std::vector<int64_t> HeldByHand(const DeviceMesh& mesh, const DimLayout& dim, int64_t n,
                                const absl::InlinedVector<int, 4>& coordinate);

std::vector<int64_t> Elements(const IndexSet& set);  // by position

// How GoogleTest shows them.
inline void PrintTo(const DeviceMesh& mesh, std::ostream* out) { *out << mesh.ToString(); }
inline void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.ToString(); }
inline void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.ToString(); }

}  // namespace dtensor

#endif  // DTENSOR_TESTING_SMALL_LAYOUTS_H_
