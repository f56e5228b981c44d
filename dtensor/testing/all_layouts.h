// Every layout that placements can say, for tests that go through all pairs of them.
#ifndef DTENSOR_TESTING_ALL_LAYOUTS_H_
#define DTENSOR_TESTING_ALL_LAYOUTS_H_

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"

namespace dtensor {

// Contiguous alone, or all kinds of orders.
inline std::vector<ShardOrder> ContiguousOrder() { return {ShardOrder::Contiguous()}; }
inline std::vector<ShardOrder> AllOrders() {
  return {ShardOrder::Contiguous(), ShardOrder::Unit(2), ShardOrder::Cyclic(2),
          ShardOrder::Block(1), ShardOrder::Zigzag()};
}

// R, P(op) of each op, and S(d) in each order for each dimension.
inline std::vector<Placement> AllPlacements(int ndim, absl::Span<const ReduceOp> ops,
                                            absl::Span<const ShardOrder> orders) {
  std::vector<Placement> placements = {Replicate()};
  for (const ReduceOp op : ops) placements.push_back(Partial(op));
  for (int d = 0; d < ndim; ++d) {
    for (const ShardOrder& order : orders) placements.push_back(Shard(d, order));
  }
  return placements;
}

inline std::vector<Placement> AllPlacements(int ndim, ReduceOp op,
                                            absl::Span<const ShardOrder> orders) {
  return AllPlacements(ndim, absl::MakeConstSpan(&op, 1), orders);
}

// Sums beside averages.
inline std::vector<ReduceOp> SumAndAverage() { return {ReduceOp::kSum, ReduceOp::kAvg}; }

// A layout of one placement for each axis as draw() returns them; again while no layout says them.
template <typename Draw>
Layout DrawLayout(const DeviceMesh& mesh, absl::Span<const int64_t> shape, Draw draw) {
  while (true) {
    Placements placements;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) placements.push_back(draw());
    auto layout = Layout::FromPlacements(mesh, placements, shape);
    if (layout.ok()) return *std::move(layout);
  }
}

// Each layout once; placements that no layout says are left out.
inline std::vector<Layout> AllLayouts(const DeviceMesh& mesh, absl::Span<const int64_t> shape,
                                      absl::Span<const ReduceOp> ops,
                                      absl::Span<const ShardOrder> orders) {
  const std::vector<Placement> all = AllPlacements(static_cast<int>(shape.size()), ops, orders);
  std::vector<Layout> layouts;
  std::vector<size_t> index(mesh.num_axes(), 0);
  while (true) {
    Placements placements;
    for (size_t i : index) placements.push_back(all[i]);
    auto layout = Layout::FromPlacements(mesh, placements, shape);
    if (layout.ok() && std::find(layouts.begin(), layouts.end(), *layout) == layouts.end()) {
      layouts.push_back(*std::move(layout));
    }
    size_t a = 0;
    while (a < index.size() && ++index[a] == all.size()) index[a++] = 0;
    if (a == index.size()) return layouts;
  }
}

inline std::vector<Layout> AllLayouts(const DeviceMesh& mesh, absl::Span<const int64_t> shape,
                                      ReduceOp op, absl::Span<const ShardOrder> orders) {
  return AllLayouts(mesh, shape, absl::MakeConstSpan(&op, 1), orders);
}

}  // namespace dtensor

#endif  // DTENSOR_TESTING_ALL_LAYOUTS_H_
