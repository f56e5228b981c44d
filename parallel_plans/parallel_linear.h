// ColumnParallelLinear and RowParallelLinear: linear layers that are sharded over one mesh axis
// from the start, for models that are put together by hand. (For a model that knows nothing of
// meshes, use a plan instead: {"up", Colwise("tp")}, {"down", Rowwise("tp")} do the same.) On an
// axis of n ranks, with x [..., in] and y [..., out], one rank has:
//                          weight         bias       x              y
//   ColumnParallelLinear   [out/n, in]    [out/n]    whole          [..., out/n], or gathered
//   RowParallelLinear      [out, in/n]    [out]      [..., in/n]    whole: the sum over ranks
//
//   auto up = ColumnParallelLinear::Create(context, mesh, dim, hidden, /*bias=*/true,
//                                          /*gather_output=*/false, {.seed = 1});
//   auto down = RowParallelLinear::Create(context, mesh, hidden, dim, /*bias=*/true,
//                                         /*input_is_parallel=*/true, {.seed = 2});
//   TensorOr y = (**down)(Silu((**up)(x)));
//
// Tensors are global: x and y have all their features in any layout, and y is the same on every
// mesh. A row-parallel bias is replicated and is added once, after the sum. Gradients of the
// weight, and of a column-parallel bias, have the parameter's layout. Backward all-reduces the
// gradient of the column-parallel layer's x where it is needed. On an axis of one rank nothing is
// sharded and nothing moves.
#ifndef DTENSOR_PARALLEL_PLANS_PARALLEL_LINEAR_H_
#define DTENSOR_PARALLEL_PLANS_PARALLEL_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/placement.h"
#include "dtensor/nn/layers.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct ParallelLinearOptions {
  std::string axis = "tp";  // a name of the mesh: an axis or a group
  // Initial values: the whole weight [out, in] and bias [out], row-major, the same on every rank.
  // If empty: normal(0, stddev) by the seed, and a bias of 0. Layers with the same seed get the
  // same values.
  std::vector<double> master_weight = {}, master_bias = {};
  uint64_t seed = 0;
  double stddev = 0.02;
  DType dtype = DType::kF32;
  // Call(x) returns y and the bias as two results, and the bias is not added.
  bool return_bias = false;
  // Without this, features that the axis does not split evenly are refused. With it, trailing ranks
  // have fewer.
  bool allow_uneven = false;
  // For RowParallelLinear: R, or S(d) to reduce-scatter the result instead of all-reducing it, as
  // sequence parallelism needs it.
  Placement output = Replicate();
};

class ColumnParallelLinear : public LinearLayer {
 public:
  // gather_output: y is gathered on the axis. Create does not communicate. Errors: kInvalidArgument
  // for sizes below 1, an axis that the mesh lacks, features that do not divide evenly, a wrong
  // number of master values, a mesh whose size is not that of the world; failures.
  static absl::StatusOr<std::unique_ptr<ColumnParallelLinear>> Create(
      Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
      bool gather_output, const ParallelLinearOptions& options = {});

 private:
  using LinearLayer::LinearLayer;
};

class RowParallelLinear : public LinearLayer {
 public:
  // input_is_parallel: the features of x must already be sharded on the axis, else x is refused.
  // Without it, x is sharded here, which moves nothing if it is replicated. Errors: as above.
  static absl::StatusOr<std::unique_ptr<RowParallelLinear>> Create(
      Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
      bool input_is_parallel, const ParallelLinearOptions& options = {});

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  using LinearLayer::LinearLayer;
  absl::Status CheckInput(const DistributedTensor& x) const;
  AxisList input_axes_;  // the axes that must shard x's features
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_LINEAR_H_
