// ModuleEdge: the layout to which a module's operands or results are redistributed. Plans set a
// module's edges (Module::edges), and calling the module applies them.
#ifndef DTENSOR_NN_MODULE_EDGE_H_
#define DTENSOR_NN_MODULE_EDGE_H_

#include <optional>

#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Where a module's operands and results are brought, on some mesh axes. Other axes keep their
// placements. Placements and position are as in Layout::WithAxes.
struct ModuleEdge {
  DeviceMesh mesh;
  AxisList axes;
  std::optional<Placement> input, output;  // none: as it comes
  bool allow_uneven = false;               // else a Shard that does not divide is refused
  SplitPosition position = SplitPosition::kMinor;
  // True: if `input` gathers an operand, operators that save it keep it gathered until Backward.
  // False: they keep the tensor from before the gather, and Backward gathers it again. This takes
  // less memory and one more collective.
  bool keep_gathered = false;
  // The number of the one operand that `input` applies to, and of the one result that `output`
  // applies to; -1: all of them.
  int index = -1;
};

// Applies that side of `edges`, one edge after the other, to x, which is operand or result number
// `index`; all in one redistribution. If x is on another mesh than `mesh`, the edges apply to the
// layout that it would have there (Layout::OnMesh); if x's mesh has all ranks of `mesh` and more, x
// is brought there before, so that the edges move it among these ranks alone. A null `mesh`: x
// stays on its own. Errors: kInvalidArgument for a mesh other than the edge's, a placement that
// WithAxes refuses, and a dimension that does not divide evenly, naming the multiple that would;
// failures.
TensorOr AtEdges(const DistributedTensor& x, absl::Span<const ModuleEdge> edges,
                 std::optional<Placement> ModuleEdge::*side, int index = 0,
                 const DeviceMesh* mesh = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_NN_MODULE_EDGE_H_
