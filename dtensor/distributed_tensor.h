// DistributedTensor: one global tensor, spread over a mesh. What a program computes with.
//
//   RunRanks(4, [&](Context& context) -> absl::Status {
//     DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
//     TensorOr x = Distribute<float>(context, mesh, {Shard(0), Replicate()}, {8, 4}, values);
//     TensorOr w = RandomNormal(context, mesh, {Replicate(), Shard(1)}, {4, 6}, {.seed = 1});
//     DT_ASSIGN_OR_RETURN(auto y, MatMul(x, w));  // S(0) on dp, S(1) on tp: nothing moved
//     DT_ASSIGN_OR_RETURN(auto z, y.Redistribute({Shard(0), Replicate()}));  // an all-gather
//     DT_ASSIGN_OR_RETURN(std::vector<float> all, ToGlobal<float>(z));  // waits for the values
//     return absl::OkStatus();
//   });
//
// A cheap handle; copies are the same tensor. Every rank runs the same program on its own shard:
// calls that move data are collective (all ranks of the mesh make them, in the same order). Results
// may not be ready when a call returns (runtime/device/device.h); ToGlobal() waits.
//
// Errors are absl::Status. A refusal (unlike shapes, a bad placement) follows from metadata alone,
// is the same on every rank, comes before any byte moves, and leaves the Context usable. A failure
// (transport, device, an index out of range in one rank's data) ends the world: see
// runtime/comm/communicator.h.
#ifndef DTENSOR_DISTRIBUTED_TENSOR_H_
#define DTENSOR_DISTRIBUTED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/context.h"
#include "dtensor/layout.h"
#include "dtensor/placement.h"
#include "dtensor/redistribution_plan.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

struct TensorImpl;  // tensor_impl.h

struct RedistributeOptions {
  // How the plan is chosen; the Context's options if unset. Its dtype is not looked at: see below.
  std::optional<RedistributionOptions> plan;
  // The result's type, this tensor's if unset: elements are converted on the way, between f32, bf16
  // and f16, and where no gradient is recorded. Other casts are operators.
  std::optional<DType> dtype;
  // Returns at once; the first use of the result waits, or dropping it. All ranks use it, or drop
  // it, at the same place of the program. Until then this tensor must not be written.
  bool async = false;
};

class DistributedTensor {
 public:
  DistributedTensor() = default;  // undefined
  explicit DistributedTensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return impl_ != nullptr; }

  // --- What it is. Of this and all below that returns no status: Requires: defined().
  Context& context() const;
  const Spec& spec() const;
  const DeviceMesh& mesh() const { return spec().layout.mesh(); }
  const Layout& layout() const { return spec().layout; }
  const Dims& shape() const { return spec().shape; }  // global
  int rank() const { return static_cast<int>(shape().size()); }
  DType dtype() const { return spec().dtype; }
  // This rank's shard, of shape spec().local_shape; one that is on its way is waited for. Undefined
  // if it failed to come: the Context is dead then.
  const Tensor& local() const;
  std::string ToString() const { return spec().ToString(); }

  // The same tensor in another layout: at most two rounds of communication, none when nothing must
  // move. Collective. Remembered while this tensor lives (not for parameters): asking twice gathers
  // once, if no options are given. Storage may be shared; with options.plan->in_place this tensor
  // may be overwritten, and must not be read any more. Errors: kInvalidArgument for an undefined
  // tensor, or placements that do not fit, naming them and the shape, or a type that needs a Cast;
  // kResourceExhausted for a cap that is too small; failures.
  //
  // The target may be on another mesh of this world: every rank of both makes the call, the ranks
  // of the target's mesh that are not on this one with a tensor of this mesh all the same (made by
  // Full or FromLocal: there it has no elements). Such a move is not recorded: Detach() what wants
  // a gradient.
  absl::StatusOr<DistributedTensor> Redistribute(const Layout& layout,
                                                 const RedistributeOptions& options = {}) const;
  absl::StatusOr<DistributedTensor> Redistribute(absl::Span<const Placement> placements,
                                                 const RedistributeOptions& options = {}) const;
  absl::StatusOr<DistributedTensor> Redistribute(std::initializer_list<Placement> placements,
                                                 const RedistributeOptions& options = {}) const {
    return Redistribute(absl::MakeConstSpan(placements.begin(), placements.size()), options);
  }

  // --- Gradients (autograd.h).
  bool requires_grad() const;
  void set_requires_grad(bool on);  // Requires: a leaf, not the result of a recorded operator
  // The gradient that Backward() left; it may be Partial (autograd.h: ReduceGradients). Undefined
  // when there is none.
  DistributedTensor grad() const;
  void ClearGrad();
  // The same values, not recorded.
  DistributedTensor Detach() const;

  // A parameter's layout was chosen by a plan: operators move the other operand where they can.
  bool pinned() const;
  void set_pinned(bool on);

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

 private:
  std::shared_ptr<TensorImpl> impl_;
};

using TensorOr = absl::StatusOr<DistributedTensor>;

// --- Making tensors. All take the global shape; none communicates. Placements are one for each
// axis of `mesh`, which lies on all ranks of the world, or on those that it names
// (DeviceMesh::OnRanks); on others the tensor has no elements, and operators refuse it. Errors:
// kInvalidArgument for a mesh of another size, placements that do not fit the shape, and, but for
// FromLocal, a Partial layout.

// Every rank passes the same global values, row-major, and keeps its shard. T is the C++ type of
// any DType (runtime/core/dtype.h). Errors: also another number of values than the shape has.
template <typename T>
TensorOr Distribute(Context& context, const DeviceMesh& mesh,
                    absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                    absl::Span<const T> values);
template <typename T>
TensorOr Distribute(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                    absl::Span<const T> values);
// This rank's shard as it is, on context.device(), or its term where the layout is Partial: the
// only way to make a Partial tensor. Errors: also when `local` is undefined or has not the local
// shape that the layout gives. That may happen on one rank alone: return it, so that ranks
// which wait for this one get an error that names it.
TensorOr FromLocal(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                   absl::Span<const int64_t> shape, Tensor local);
TensorOr FromLocal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                   Tensor local);
TensorOr Full(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
              absl::Span<const int64_t> shape, DType dtype, double value);
TensorOr Full(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
              double value);

// Each element depends on (seed, stream, its global index) alone: the same on every mesh.
// Errors: also a type that is not floating.
struct RandomOptions {
  uint64_t seed = 0;
  uint64_t stream = 0;  // tells tensors of one seed apart
  double mean = 0, stddev = 1;
  DType dtype = DType::kF32;
};
TensorOr RandomNormal(Context& context, const DeviceMesh& mesh,
                      absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                      const RandomOptions& options);
TensorOr RandomNormal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      const RandomOptions& options);

// --- Reading them. Collective (redistributes to Replicate), waits for the values. Errors:
// kInvalidArgument for an undefined tensor; kFailedPrecondition on meta; failures.

// All elements, row-major. Errors: also kInvalidArgument when T is not the C++ type of the dtype.
template <typename T>
absl::StatusOr<std::vector<T>> ToGlobal(const DistributedTensor& tensor);
// The only element, as a double. Errors: also kInvalidArgument for more elements, or no floats.
absl::StatusOr<double> Item(const DistributedTensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_DISTRIBUTED_TENSOR_H_
