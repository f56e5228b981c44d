// ColumnParallelLinear and RowParallelLinear: a linear layer that is split over one mesh axis from
// the start, for models that are put together by hand. (A model that knows nothing of meshes takes
// a plan: {"up", Colwise("tp")}, {"down", Rowwise("tp")}; these two are those.) On an axis of n
// ranks, x [..., in], y [..., out]; what one rank has:
//
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
// Tensors are global: x and y have all features wherever they lie, and y is the same on every mesh.
// A row-parallel bias is whole on every rank and is added once, after the sum. Gradients follow:
// the weight's and a column-parallel bias's lie as they do; Backward all-reduces the
// column-parallel layer's x where it is needed. On an axis of one rank nothing is split and nothing
// moves.
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
  // First values: these, the whole weight [out, in] and bias [out], row-major, the same on every
  // rank; or, where empty, normal(0, stddev) by the seed, and a bias of 0. Layers with one seed
  // start alike.
  std::vector<double> master_weight = {}, master_bias = {};
  uint64_t seed = 0;
  double stddev = 0.02;
  DType dtype = DType::kF32;
  // The bias is a second result instead of being added: Call(x) gives y and the bias.
  bool return_bias = false;
  // Features that the axis does not split evenly are refused unless this is set; then trailing
  // ranks have fewer.
  bool allow_uneven = false;
  // Of RowParallelLinear: R, or S(d) for a reduce-scatter in place of the all-reduce, as sequence
  // parallelism wants it.
  Placement output = Replicate();
};

class ColumnParallelLinear : public LinearLayer {
 public:
  // gather_output: y is gathered on the axis. No communication here. Errors: kInvalidArgument for
  // sizes below 1, an axis that the mesh lacks, features that do not divide, another number of
  // master values, a mesh of another size than the world; failures.
  static absl::StatusOr<std::unique_ptr<ColumnParallelLinear>> Create(
      Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
      bool gather_output, const ParallelLinearOptions& options = {});

 private:
  using LinearLayer::LinearLayer;
};

class RowParallelLinear : public LinearLayer {
 public:
  // input_is_parallel: x has to come with its features split on the axis, else it is refused;
  // otherwise it is split here, which moves nothing where it is whole. As above.
  static absl::StatusOr<std::unique_ptr<RowParallelLinear>> Create(
      Context& context, const DeviceMesh& mesh, int64_t in, int64_t out, bool bias,
      bool input_is_parallel, const ParallelLinearOptions& options = {});

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  using LinearLayer::LinearLayer;
  absl::Status CheckInput(const DistributedTensor& x) const;
  AxisList input_axes_;  // that have to split x's features
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_LINEAR_H_
