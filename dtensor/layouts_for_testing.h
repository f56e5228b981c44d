// Every layout that placements can say, for tests that go through all pairs of them.
#ifndef DTENSOR_LAYOUTS_FOR_TESTING_H_
#define DTENSOR_LAYOUTS_FOR_TESTING_H_

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/device_mesh.h"
#include "dtensor/layout.h"
#include "dtensor/placement.h"

namespace dtensor {

// Contiguous alone, or all kinds of orders.
inline std::vector<Order> ContiguousOrder() { return {Order::Contiguous()}; }
inline std::vector<Order> AllOrders() {
  return {Order::Contiguous(), Order::Unit(2), Order::Cyclic(2), Order::Block(1), Order::Zigzag()};
}

// R, P(op), and S(d) in each order for each dimension.
inline std::vector<Placement> AllPlacements(int rank, ReduceOp op, absl::Span<const Order> orders) {
  std::vector<Placement> placements = {Replicate(), Partial(op)};
  for (int d = 0; d < rank; ++d) {
    for (const Order& order : orders) placements.push_back(Shard(d, order));
  }
  return placements;
}

// Each layout once; placements that no layout says are left out.
inline std::vector<Layout> AllLayouts(const DeviceMesh& mesh, absl::Span<const int64_t> shape,
                                      ReduceOp op, absl::Span<const Order> orders) {
  const std::vector<Placement> all = AllPlacements(static_cast<int>(shape.size()), op, orders);
  std::vector<Layout> layouts;
  std::vector<size_t> index(mesh.rank_of_axes(), 0);
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

}  // namespace dtensor

#endif  // DTENSOR_LAYOUTS_FOR_TESTING_H_
