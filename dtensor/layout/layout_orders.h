// Converts the orders in which axes split one dimension to factors, and back. Only for layout.h's
// sources.
#ifndef DTENSOR_LAYOUT_LAYOUT_ORDERS_H_
#define DTENSOR_LAYOUT_LAYOUT_ORDERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"

namespace dtensor {

// How one axis, of `parts` ranks, splits the dimension in question. Each axis splits the share that
// the axes before it left.
struct Deal {
  int axis = 0;
  int64_t parts = 1;
  ShardOrder order;
};

// Whether the order needs no factor of its own: contiguous or zigzag.
constexpr bool IsPlain(ShardOrder order) {
  return order.kind == ShardOrder::Kind::kContiguous || order.kind == ShardOrder::Kind::kZigzag;
}

// The factors that `deals` give for dimension `d` of size `n`; not yet canonical. Errors:
// kInvalidArgument, naming axes and remedy, if no factors express that exactly.
absl::StatusOr<DimLayout> FactorsOf(const DeviceMesh& mesh, int d, int64_t n,
                                    const std::vector<Deal>& deals);

// The reverse: if there are deals whose factors are `dim`, returns them. If there are none, the
// result is meaningless, so check it with FactorsOf. Each axis that splits `dim` occurs once, in no
// particular order.
std::vector<Deal> OrdersOf(const DeviceMesh& mesh, const DimLayout& dim, int64_t n);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_ORDERS_H_
