// LocalMap: computes results from each rank's own shards, by a function that knows nothing of the
// other ranks. It serves what no operator of ops.h does and no rule (op_rule.h) describes.
//
//   // Each row of x [batch, d], sharded over the batch, divided by the mean of its rank's rows.
//   DT_ASSIGN_OR_RETURN(
//       std::vector<DistributedTensor> y,
//       LocalMap({x}, {{x.layout(), x.shape()}},
//                [](absl::Span<const DistributedTensor> local) -> TensorsOr {
//                  DT_ASSIGN_OR_RETURN(auto y, Div(local[0], Mean(local[0], {0})));
//                  return std::vector<DistributedTensor>{y};
//                }));
//
// It does what local_map, DTensor.to_local() and DTensor.from_local() do in PyTorch. The layouts of
// gradients are not the caller's to give: they follow from those of operands and results.
#ifndef DTENSOR_TENSOR_LOCAL_MAP_H_
#define DTENSOR_TENSOR_LOCAL_MAP_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/recompute.h"

namespace DTENSOR_EXPORT dtensor {

// Gets this rank's shard of each operand, and returns this rank's shard of each result. All of them
// are tensors on a mesh of one rank, shards[0].mesh(): operators compute with them, and record them
// for Backward, without communication. A tensor on the operands' mesh that the function needs, such
// as a weight, has to be an operand: operators refuse it beside a shard.
//
// On a rank of the operands' mesh, that one rank is this rank, and the shards' shapes are
// Spec::local_shape of the operand or the result; shards may be empty. On any other rank, the
// function gets the shards of the mesh's first rank, with their shapes, on the mesh of that rank
// alone and without elements. So make other tensors on shards[0].mesh().
using LocalFunction = std::function<TensorsOr(absl::Span<const DistributedTensor> shards)>;

// A result: where fn's tensors belong. The shape is global.
struct LocalMapResult {
  Layout layout;
  Dims shape;
};

struct LocalMapOptions {
  // The layouts in which fn gets the operands: empty, or one for each, where unset means that the
  // operand's own stays. Operands in other layouts are redistributed first.
  std::vector<std::optional<Layout>> operand_layouts = {};
};

// The mesh of this rank alone: one axis, "local", of size 1.
absl::StatusOr<DeviceMesh> LocalMesh(const Context& context);
// The mesh on which LocalMap gives fn the shards of operands on `mesh`: that of this rank alone or,
// if it is not on `mesh`, of the first rank of `mesh`.
absl::StatusOr<DeviceMesh> LocalMesh(const Context& context, const DeviceMesh& mesh);

// Returns the tensors of which fn returned the shards. Values are what fn makes of them: over a
// mesh axis on which a result is
// - sharded, fn returned this rank's shard;
// - Partial, fn returned this rank's term;
// - replicated, fn must have returned the same values on each of the axis's ranks, which is not
//   checked.
// An operand that is Partial over an axis is given as this rank's term, and all results must be
// Partial over this axis by the same op. The values are then right only if fn does the same on each
// of the axis's ranks, and is linear in the term (sum and avg), never decreases (max and min), or
// is multiplicative (product).
//
// Collective: all ranks of the mesh call it with the same arguments. fn runs once on each of them,
// and on other ranks that call it, and may do other things on each, but the types of its results,
// what it does with tensors that are not on the shards' mesh and with shards of other calls, and
// how many random numbers it draws (Context::NextSeed) must be the same on all. Indices that random
// operators see are those of the shard. Results are values: writes to one are not seen in fn's
// tensors, and the reverse. Ranks that mix up the results of two calls with the same operands are
// not told.
//
// Gradients: if the Context records and an operand wants a gradient, Backward walks what fn
// recorded. An operand's gradient is sharded as the operand; over an axis on which the operand is
// replicated, it is Partial(sum), because each rank's results depended on it; if all results are
// replicated there too, the gradient is replicated. A gradient of zeros arrives where fn's results
// did not depend on the operand. Leaves on the shards' mesh that fn reads then get their gradients,
// each rank its own; if no operand wants a gradient, a result that wants one is refused. What fn's
// operators save stays in memory until Backward, also a parameter of a gather group
// (gather_group.h) that was gathered for the call: Recompute() around it avoids that.
//
// Errors: kInvalidArgument, before anything moves, for no operands, undefined ones, operands of two
// Contexts or meshes, layouts on another mesh or of other dimensions, a result that is not Partial
// where an operand is; if a gradient is wanted, for a result that is Partial with another op than
// sum, and for an operand that another op reduces on the way to its operand_layouts. Those of fn,
// and kInvalidArgument for another number of tensors than `results`, and for a tensor that is
// undefined, not on the shards' mesh, of another shape than the rank's shard, or that wants a
// gradient where no operand does. What fn does may fail on one rank alone, here or in Backward (an
// operator without a backward, a write to a tensor that was saved): return the error from the
// rank's function, so that ranks which wait for this one get it too.
TensorsOr LocalMap(absl::Span<const DistributedTensor> operands,
                   absl::Span<const LocalMapResult> results, const LocalFunction& fn,
                   const LocalMapOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LOCAL_MAP_H_
