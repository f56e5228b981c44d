// DistributedTensor: one global tensor, spread over a mesh. Programs compute with these.
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
// A mesh may be on some ranks of the world only, such as a stage of a pipeline. The others may run
// the same calls: there a tensor has a layout and a shape, but no elements, and operators compute
// and communicate nothing. If a tensor that wants a gradient goes to a mesh of other ranks, the
// ranks of both meshes run everything that leads to the loss, on either mesh, and Backward.
//
// Errors are absl::Status. A refusal (different shapes, a bad placement) follows from metadata
// alone, is the same on every rank, comes before any byte moves, and leaves the Context usable. A
// failure (transport, device, an index out of range in one rank's data) ends the world: see
// runtime/comm/communicator.h.
#ifndef DTENSOR_TENSOR_DISTRIBUTED_TENSOR_H_
#define DTENSOR_TENSOR_DISTRIBUTED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

struct TensorImpl;  // tensor_impl.h

struct RedistributeOptions {
  // How the plan is chosen; the Context's options if unset. Its dtype is unset or the result's.
  std::optional<RedistributionOptions> plan = {};
  // The result's type; this tensor's if unset. Elements are converted while they are moved. Only
  // between f32, bf16 and f16, and only if no gradient is recorded; use Cast for others.
  std::optional<DType> dtype = {};
  // Returns at once. The first use of the result waits for it, and so does a write to this tensor
  // (BeforeWrite). All ranks must use the result, or drop it unused, at the same place of the
  // program. For a move to another mesh, "all ranks" are those of both meshes, and the place must
  // come before anything else moves between them and before this tensor is written.
  bool async = false;
  // Only has an effect if the Context overlaps communication (OverlapOptions): an all-gather is
  // then put off until the first use of the result, or until this tensor is written to
  // (BeforeWrite), so that a product that reads the result can be computed while it is gathered
  // (docs/overlap.md). All ranks must use the result, or drop it unused, at the same place of the
  // program. Module edges (module.h) set this.
  bool on_use = false;
};

class DistributedTensor {
 public:
  DistributedTensor() = default;  // undefined
  explicit DistributedTensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return impl_ != nullptr; }

  // --- What it is. This and everything below that returns no status requires defined().
  Context& context() const;
  const Spec& spec() const;
  const DeviceMesh& mesh() const { return spec().layout.mesh(); }
  const Layout& layout() const { return spec().layout; }
  const Dims& shape() const { return spec().shape; }  // global
  int ndim() const { return static_cast<int>(shape().size()); }
  DType dtype() const { return spec().dtype; }
  // This rank's shard, of shape spec().local_shape. Waits if it is still being received. If
  // receiving failed, its values are unspecified: the world has failed, and WaitFor() (wait_for.h)
  // says why. A Partial result of an operator is this rank's own term, and may be read on one rank
  // alone. Before writing to it in place, call BeforeWrite() of this tensor, not of the local one.
  const Tensor& local() const;
  std::string ToString() const { return spec().ToString(); }

  // Returns the same values in another layout. Takes zero to two rounds of communication; if the
  // options have a table of link speeds, one more for each further speed. Collective. If no options
  // are given, the result is remembered while this tensor lives, so a second call for the same
  // layout communicates nothing. (Not remembered: results for parameters, for a tensor that is
  // itself two such redistributions away from its source, and on another mesh.) Writes to one
  // tensor are not seen in the other, though both may share memory until then (BeforeWrite). With
  // options.plan->in_place, if the plan can use it, the result takes this tensor's memory (a copy,
  // if aliases or the tape refer to that memory), and reading this tensor becomes an error. A rank
  // that is not on the mesh may make the call too: it takes no part, and its result has no
  // elements. Errors: kInvalidArgument for an undefined tensor, for placements that do not fit,
  // naming them and the shape, or for a type that needs a Cast; kResourceExhausted for a cap that
  // is too small; failures.
  //
  // The target may be on another mesh of this world. Then every rank of both meshes makes the call.
  // Ranks that are only on the target's mesh have a tensor without elements as the source: the
  // result of the same operators, or of Full on the source's mesh. Backward moves the gradient back
  // to the source's mesh, so all of these ranks must agree on whether a gradient is wanted: a
  // source made by Full in place of operators goes with a Detach() on the ranks that have elements.
  absl::StatusOr<DistributedTensor> Redistribute(const Layout& layout,
                                                 const RedistributeOptions& options = {}) const;
  absl::StatusOr<DistributedTensor> Redistribute(absl::Span<const Placement> placements,
                                                 const RedistributeOptions& options = {}) const;
  absl::StatusOr<DistributedTensor> Redistribute(std::initializer_list<Placement> placements,
                                                 const RedistributeOptions& options = {}) const {
    return Redistribute(absl::MakeConstSpan(placements.begin(), placements.size()), options);
  }

  // --- Gradients (autograd.h).
  // Whether it is a leaf that wants a gradient. (In PyTorch this is true of results, too.)
  bool requires_grad() const;
  // Errors: kInvalidArgument for an undefined tensor, or one that does not hold floats;
  // kFailedPrecondition for the result of a recorded operator, which is no leaf.
  absl::Status set_requires_grad(bool on);
  // The gradient that Backward() left; it may be Partial (autograd.h: ReduceGradients). Undefined
  // when there is none.
  DistributedTensor grad() const;
  void ClearGrad();
  // The type in which a leaf's gradient is kept and reduced: the leaf's own, or f32 for a leaf of
  // bf16 or f16. With f32, gradients that arrive in 16 bits are added up in f32, also over several
  // Backward calls. Errors: kInvalidArgument for an undefined tensor, or another type;
  // kFailedPrecondition for the result of a recorded operator, or while there is a gradient of
  // another type.
  DType grad_dtype() const;
  absl::Status set_grad_dtype(DType dtype);
  // An alias of this tensor, detached from the tape; the call is not recorded.
  DistributedTensor Detach() const;

  // A pinned tensor is redistributed by an operator only if there is no other way; the other
  // operands move instead. Parameters are pinned: a plan has chosen their layouts.
  bool pinned() const;
  void set_pinned(bool on);

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }

 private:
  std::shared_ptr<TensorImpl> impl_;
};

using TensorOr = absl::StatusOr<DistributedTensor>;

// Call this before you write to tensor.local() in place, as optimizers do. Every rank of the mesh
// makes the call. Afterwards:
// - Aliases (results of Detach, and of Reshape, Transpose, Slice and SplitTensor where nothing had
//   to move) see what you write.
// - Results of redistributions do not: those that share the tensor's memory on this rank get a copy
//   of it first.
// - Remembered redistributions of the tensor are forgotten, and asynchronous ones are waited for.
// - A Backward that needs the old values refuses to run.
// `what` is a number for what is written, the same on all ranks: if they give others, the next
// collective that reads this tensor says that they disagree (lineage.h). One that reads an alias
// does not.
// Errors: kInvalidArgument for an undefined tensor; kFailedPrecondition for the result of a
// recorded operator, for a Reshape of a tensor that is not row-major, and for a tensor in which
// several elements share one place in memory, or may do so on some rank; failures.
absl::Status BeforeWrite(const DistributedTensor& tensor, uint64_t what = 1);
// A number for the tensor's values, from how they came about, which all ranks of its mesh have
// alike if they did the same: for `what`. Requires: it is defined.
uint64_t LineageOf(const DistributedTensor& tensor);
// Only checks, with the same errors, which name `who`: for calls that write to several tensors or
// to none. If the tensor is still being received, waits for it.
absl::Status CheckWritable(absl::string_view who, const DistributedTensor& tensor);

// --- Making tensors. All take the global shape; none communicates. Give one placement for each
// axis of `mesh`. A mesh covers all ranks of the world, or the ranks that it lists
// (DeviceMesh::OnRanks); on other ranks the tensor has no elements. All ranks of a mesh must make
// its tensors in the same order (lineage.h); a tensor that only one rank makes has to be on a mesh
// of that rank alone. Errors: kInvalidArgument for a mesh of another size, placements that do not
// fit the shape, a shape that no tensor may have (negative sizes, more than 2^56 elements or
// Layout::kMaxDims dimensions), and, except in FromLocal, a Partial layout.

// Every rank passes the same global values, row-major, and keeps its shard. T is the C++ type of
// any DType (runtime/core/dtype.h). Errors: also if `values` has not one value for each element.
template <typename T>
DTENSOR_EXPORT TensorOr Distribute(Context& context, const DeviceMesh& mesh,
                                   absl::Span<const Placement> placements,
                                   absl::Span<const int64_t> shape, absl::Span<const T> values);
template <typename T>
DTENSOR_EXPORT TensorOr Distribute(Context& context, const Layout& layout,
                                   absl::Span<const int64_t> shape, absl::Span<const T> values);
// Makes a tensor of this rank's local shard, as PyTorch's DTensor.from_local does, without a copy.
// If the layout is Partial, `local` is this rank's term; no other function below makes Partial
// tensors. The result is a leaf: gradients do not flow to whatever `local` was computed from.
// Errors: also when `local` is undefined, lies on another device than context.device(), or has
// another shape than the layout gives this rank. That can happen on one rank alone: return the
// error from the rank's function, so that ranks which wait for this one get it too.
TensorOr FromLocal(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                   absl::Span<const int64_t> shape, Tensor local);
TensorOr FromLocal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                   Tensor local);
TensorOr Full(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
              absl::Span<const int64_t> shape, DType dtype, double value);
TensorOr Full(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
              double value);
// Full with what x has: its Context, layout (replicated where x is Partial), shape and type; or
// with another shape, replicated, as {} for a scalar that Less(x, ...) compares with. Errors: also
// for an undefined x.
TensorOr FullLike(const DistributedTensor& x, double value);
TensorOr FullLike(const DistributedTensor& x, double value, absl::Span<const int64_t> shape);

// start + step * i for i in [0, n), each computed in f64 and cast to `dtype` (ops.h): exact for
// integers up to 2^53.
TensorOr Arange(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                int64_t n, DType dtype, double start = 0, double step = 1);
TensorOr Arange(Context& context, const Layout& layout, int64_t n, DType dtype, double start = 0,
                double step = 1);

// Each element depends on (seed, stream, its global index) alone, so values are the same on every
// mesh. Errors: also for a type that is not floating.
struct RandomOptions {
  uint64_t seed = 0;
  uint64_t stream = 0;  // give tensors with the same seed different streams
  double mean = 0, stddev = 1;
  DType dtype = DType::kF32;
};
TensorOr RandomNormal(Context& context, const DeviceMesh& mesh,
                      absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                      const RandomOptions& options);
TensorOr RandomNormal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      const RandomOptions& options);
// The same, uniform in [low, high); rounding to `dtype` may give `high` itself. Errors: also for
// bounds that are not in order, or whose distance is not finite in f32 (f64 for f64).
struct UniformOptions {
  uint64_t seed = 0;
  uint64_t stream = 0;
  double low = 0, high = 1;
  DType dtype = DType::kF32;
};
TensorOr RandomUniform(Context& context, const DeviceMesh& mesh,
                       absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                       const UniformOptions& options);
TensorOr RandomUniform(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       const UniformOptions& options);

// --- Reading tensors. Collective: redistributes to Replicate and waits for the values. Errors:
// kInvalidArgument for an undefined tensor; kFailedPrecondition on meta; failures.

// All elements, row-major. Errors: also kInvalidArgument when T is not the C++ type of the dtype.
template <typename T>
DTENSOR_EXPORT absl::StatusOr<std::vector<T>> ToGlobal(const DistributedTensor& tensor);
// The only element, of any type, as a double: exact for integers up to 2^53 and for bool (0 or 1).
// Errors: also kInvalidArgument for more elements, or none.
absl::StatusOr<double> Item(const DistributedTensor& tensor);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DISTRIBUTED_TENSOR_H_
