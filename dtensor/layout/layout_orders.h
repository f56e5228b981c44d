// The orders in which axes split one dimension, as factors, and back. Part of layout.h's sources.
#ifndef DTENSOR_LAYOUT_LAYOUT_ORDERS_H_
#define DTENSOR_LAYOUT_LAYOUT_ORDERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"

namespace dtensor {

// One axis of `parts` ranks that splits the dimension at hand. Each deals what those before it
// left.
struct Deal {
  int axis = 0;
  int64_t parts = 1;
  ShardOrder order;
};

// Whether the order needs no factor of its own: contiguous or zigzag.
constexpr bool IsPlain(ShardOrder order) {
  return order.kind == ShardOrder::Kind::kContiguous || order.kind == ShardOrder::Kind::kZigzag;
}

// The factors of dimension `d` of size `n` that `deals` say; not yet canonical.
// Errors: kInvalidArgument where no factors say exactly that, naming axes and remedy.
absl::StatusOr<DimLayout> FactorsOf(const DeviceMesh& mesh, int d, int64_t n,
                                    const std::vector<Deal>& deals);

// The reverse, as a guess: deals whose factors are `dim` if any are. Each axis that splits `dim`
// occurs once, in no particular order.
std::vector<Deal> OrdersOf(const DeviceMesh& mesh, const DimLayout& dim, int64_t n);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_ORDERS_H_
