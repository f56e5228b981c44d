#include "dtensor/testing/small_layouts.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace dtensor {
namespace {

// All ordered selections of `axes`, the empty one first.
std::vector<std::vector<int>> Selections(const std::vector<int>& axes) {
  std::vector<std::vector<int>> result = {{}};
  for (size_t i = 0; i < result.size(); ++i) {
    for (int axis : axes) {
      if (std::find(result[i].begin(), result[i].end(), axis) != result[i].end()) continue;
      std::vector<int> longer = result[i];
      longer.push_back(axis);
      result.push_back(std::move(longer));
    }
  }
  return result;
}

// `dim` with the axes in order, each added to every factor, contiguous and zigzag.
void AddSplits(const DimLayout& dim, const std::vector<int>& axes, size_t next,
               std::vector<DimLayout>& result) {
  if (next == axes.size()) {
    result.push_back(dim);
    return;
  }
  for (size_t f = 0; f < dim.size(); ++f) {
    for (bool zigzag : {false, true}) {
      DimLayout more = dim;
      more[f].splits.push_back({axes[next], zigzag});
      AddSplits(more, axes, next + 1, result);
    }
  }
}

int64_t CeilByHand(int64_t n, int64_t d) {
  int64_t chunks = 0;
  for (int64_t i = 0; i < n; i += d) ++chunks;
  return chunks;
}

}  // namespace

DeviceMesh MeshOf(const std::string& text) {
  absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(text);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.value_or(DeviceMesh());
}

std::vector<DeviceMesh> SmallMeshes() {
  std::vector<DeviceMesh> meshes;
  for (const char* text : {"a=1", "a=2", "a=3", "a=4", "a=2,b=2", "a=2,b=3", "a=3,one=1"}) {
    meshes.push_back(MeshOf(text));
  }
  return meshes;
}

std::vector<DimLayout> SmallDimLayoutsOver(const std::vector<int>& axes) {
  const std::vector<std::vector<int64_t>> inner_sizes = {{},  {1},    {2},    {3},    {4},
                                                         {5}, {2, 2}, {2, 3}, {3, 2}, {1, 4}};
  std::vector<DimLayout> result = {{}};
  for (const std::vector<int64_t>& sizes : inner_sizes) {
    DimLayout dim(1);
    for (int64_t size : sizes) dim.push_back({size, {}});
    for (const std::vector<int>& selection : Selections(axes)) AddSplits(dim, selection, 0, result);
  }
  return result;
}

std::vector<DimLayout> SmallDimLayouts(const DeviceMesh& mesh) {
  std::vector<int> axes;
  for (int a = 0; a < mesh.num_axes(); ++a) axes.push_back(a);
  return SmallDimLayoutsOver(axes);
}

std::vector<int64_t> DealByHand(const std::vector<int64_t>& list, int64_t parts, bool zigzag,
                                int64_t index) {
  const int64_t chunks = zigzag ? 2 * parts : parts;
  const int64_t size = CeilByHand(static_cast<int64_t>(list.size()), chunks);
  std::vector<int64_t> dealt;
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t chunk = static_cast<int64_t>(i) / size;
    if (chunk == index || (zigzag && chunk == chunks - 1 - index)) dealt.push_back(list[i]);
  }
  return dealt;
}

std::vector<int64_t> HeldByHand(const DeviceMesh& mesh, const DimLayout& dim, int64_t n,
                                const absl::InlinedVector<int, 4>& coordinate) {
  int64_t inner = 1;
  for (const LayoutFactor& factor : dim) inner *= std::max<int64_t>(1, factor.size);
  std::vector<bool> held(n, true);
  for (const LayoutFactor& factor : dim) {
    const int64_t size = factor.size == 0 ? CeilByHand(n, inner) : factor.size;
    if (factor.size != 0) inner /= size;  // now: how far apart this factor's positions lie
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < size; ++i) positions.push_back(i);
    for (const AxisSplit& split : factor.splits) {
      positions =
          DealByHand(positions, mesh.axis_size(split.axis), split.zigzag, coordinate[split.axis]);
    }
    std::vector<bool> mine(size, false);
    for (int64_t position : positions) mine[position] = true;
    for (int64_t i = 0; i < n; ++i) {
      if (!mine[i / inner % size]) held[i] = false;
    }
  }
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < n; ++i) {
    if (held[i]) indices.push_back(i);
  }
  return indices;
}

std::vector<int64_t> Elements(const IndexSet& set) {
  std::vector<int64_t> elements;
  for (int64_t i = 0; i < set.size(); ++i) elements.push_back(set.At(i));
  return elements;
}

}  // namespace dtensor
