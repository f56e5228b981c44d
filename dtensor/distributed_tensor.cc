#include "dtensor/distributed_tensor.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/executor.h"
#include "dtensor/op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor_impl.h"

namespace dtensor {

TensorImplPtr MakeImpl(Context& context, const Spec* spec, Tensor local) {
  auto impl = std::make_shared<TensorImpl>();
  impl->context = &context;
  impl->spec = spec;
  impl->local = std::move(local);
  return impl;
}

absl::Status Settle(TensorImpl& impl) {
  if (impl.pending == nullptr) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(impl.local, impl.pending->Wait());
  impl.pending = nullptr;
  return absl::OkStatus();
}

Edge EdgeOf(const TensorImplPtr& impl) {
  if (impl->requires_grad) return {nullptr, 0, impl};
  return impl->edge;
}

namespace {

// What `impl` remembers of `target`, if it is alive and of the values `impl` has now.
TensorImplPtr Recall(const TensorImpl& impl, const Spec* target) {
  for (const TensorImpl::Remembered& known : impl.remembered) {
    if (known.spec == target && known.version == impl.version) return known.weak.lock();
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<TensorImplPtr> RedistributeTo(const TensorImplPtr& impl, const Spec* target,
                                             absl::string_view op) {
  if (impl->spec == target) return impl;
  Context& context = *impl->context;
  // Without recording an edge would only keep nodes alive; with it the gradient is the source's.
  const Edge edge = context.recording() ? EdgeOf(impl) : Edge();
  const TensorImplPtr known = Recall(*impl, target);
  if (known != nullptr && (known->edge == edge || !context.recording())) return known;
  TensorImplPtr moved = MakeImpl(context, target, Tensor());
  moved->edge = edge;
  if (known != nullptr) {  // made while nothing was recorded: the same values, with the edge
    moved->local = known->local;
  } else {
    DT_RETURN_IF_ERROR(Settle(*impl));
    DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(impl->spec, target));
    DT_ASSIGN_OR_RETURN(moved->local, Execute(*plan, impl->local, context.communicator(), op));
  }
  std::erase_if(impl->remembered, [&](const auto& old) { return old.spec == target; });
  impl->remembered.push_back(
      {target, impl->version, impl->remembers_weakly() ? nullptr : moved, moved});
  return moved;
}

namespace {

// A tensor that begins to remember weakly lets go of what it holds.
void Weaken(TensorImpl& impl) {
  if (!impl.remembers_weakly()) return;
  for (TensorImpl::Remembered& known : impl.remembered) known.strong = nullptr;
}

}  // namespace

Context& DistributedTensor::context() const {
  DT_CHECK(defined());
  return *impl_->context;
}
const Spec& DistributedTensor::spec() const {
  DT_CHECK(defined());
  return *impl_->spec;
}
const Tensor& DistributedTensor::local() const {
  DT_CHECK(defined());
  Settle(*impl_).IgnoreError();
  return impl_->local;
}
bool DistributedTensor::requires_grad() const {
  DT_CHECK(defined());
  return impl_->requires_grad;
}
void DistributedTensor::set_requires_grad(bool on) {
  DT_CHECK(defined() && !impl_->edge.wanted());
  impl_->requires_grad = on;
  Weaken(*impl_);
}
DistributedTensor DistributedTensor::grad() const {
  DT_CHECK(defined());
  return DistributedTensor(impl_->grad);
}
void DistributedTensor::ClearGrad() {
  DT_CHECK(defined());
  impl_->grad = nullptr;
}
bool DistributedTensor::pinned() const {
  DT_CHECK(defined());
  return impl_->pinned;
}
void DistributedTensor::set_pinned(bool on) {
  DT_CHECK(defined());
  impl_->pinned = on;
  Weaken(*impl_);
}

DistributedTensor DistributedTensor::Detach() const {
  DT_CHECK(defined());
  TensorImplPtr detached = MakeImpl(context(), impl_->spec, impl_->local);
  detached->pending = impl_->pending;
  return DistributedTensor(std::move(detached));
}

namespace {

// Not remembered: the options are part of what was asked for.
absl::StatusOr<TensorImplPtr> RedistributeAs(const TensorImplPtr& impl, const Spec* target,
                                             const RedistributeOptions& options) {
  constexpr absl::string_view kOp = "Redistribute";
  Context& context = *impl->context;
  DT_RETURN_IF_ERROR(Settle(*impl));
  DT_ASSIGN_OR_RETURN(
      const auto plan,
      context.Plan(impl->spec, target, options.plan.has_value() ? &*options.plan : nullptr));
  TensorImplPtr moved = MakeImpl(context, target, Tensor());
  if (context.recording()) moved->edge = EdgeOf(impl);
  if (options.async) {
    DT_ASSIGN_OR_RETURN(moved->pending, PendingRedistribution::Begin(plan, impl->local,
                                                                     context.communicator(), kOp));
  } else {
    DT_ASSIGN_OR_RETURN(moved->local, Execute(*plan, impl->local, context.communicator(), kOp));
  }
  return moved;
}

}  // namespace

absl::StatusOr<DistributedTensor> DistributedTensor::Redistribute(
    const Layout& layout, const RedistributeOptions& options) const {
  if (!defined()) return InvalidArgument({"Redistribute: the tensor is undefined"});
  const bool recorded = context().recording() && EdgeOf(impl_).wanted();
  if (recorded && layout.mesh() != mesh()) {
    return InvalidArgument({"Redistribute: a gradient is wanted of a tensor that goes from ",
                            mesh().ToString(), " to ", layout.mesh().ToString(),
                            "; Detach() it, and bring its gradient back yourself"});
  }
  const DType type = options.dtype.value_or(dtype());
  if (type != dtype() && (recorded || !ConvertsOnTheWay(dtype(), type))) {
    return InvalidArgument(
        {"Redistribute: ", dtensor::ToString(dtype()), " becomes ", dtensor::ToString(type),
         " on the way only between f32, bf16 and f16, ",
         "and where no gradient is recorded; use Cast, and Redistribute what has ", "fewer bytes"});
  }
  DT_ASSIGN_OR_RETURN(const Spec* target, context().Intern(layout, shape(), type));
  if (target == impl_->spec) return *this;
  if (!options.plan.has_value() && !options.async && type == dtype()) {
    DT_ASSIGN_OR_RETURN(TensorImplPtr impl, RedistributeTo(impl_, target, "Redistribute"));
    return DistributedTensor(std::move(impl));
  }
  DT_ASSIGN_OR_RETURN(TensorImplPtr impl, RedistributeAs(impl_, target, options));
  return DistributedTensor(std::move(impl));
}

absl::StatusOr<DistributedTensor> DistributedTensor::Redistribute(
    absl::Span<const Placement> placements, const RedistributeOptions& options) const {
  if (!defined()) return InvalidArgument({"Redistribute: the tensor is undefined"});
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh(), placements, shape()));
  return Redistribute(layout, options);
}

namespace {

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

// Copies the elements of `region` out of row-major `global`, in order.
template <typename T>
void TakeRegion(const T* global, absl::Span<const int64_t> shape, absl::Span<const IndexSet> region,
                T*& out) {
  if (region.empty()) {
    *out++ = *global;
    return;
  }
  int64_t stride = 1;
  for (int64_t size : shape.subspan(1)) stride *= size;
  for (const Run& run : region[0].runs()) {
    for (int64_t j = 0; j < run.count; ++j) {
      const T* first = global + (run.begin + j * run.stride) * stride;
      if (region.size() == 1) {
        out = std::copy(first, first + run.length, out);
        continue;
      }
      for (int64_t i = 0; i < run.length; ++i) {
        TakeRegion(first + i * stride, shape.subspan(1), region.subspan(1), out);
      }
    }
  }
}

absl::StatusOr<Tensor> NewLocal(Context& context, const Spec* spec) {
  auto local = Tensor::Empty(context.device(), spec->dtype, spec->local_shape);
  if (!local.ok()) return context.communicator().Fail(local.status());
  return local;
}

// A tensor as a rank has it that is not on the mesh.
TensorOr WithoutElements(Context& context, const Spec* spec) {
  DT_ASSIGN_OR_RETURN(Tensor local, NewLocal(context, spec));
  return DistributedTensor(MakeImpl(context, spec, std::move(local)));
}

absl::StatusOr<const Spec*> SpecOf(Context& context, const Layout& layout,
                                   absl::Span<const int64_t> shape, DType dtype,
                                   absl::string_view what) {
  if (layout.is_partial()) {
    return InvalidArgument({what, ": a tensor is not made Partial (", layout.ToString(),
                            "); use FromLocal for terms you have, or make it Replicate"});
  }
  return context.Intern(layout, shape, dtype);
}

}  // namespace

template <typename T>
TensorOr Distribute(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                    absl::Span<const T> values) {
  if (static_cast<int64_t>(values.size()) != NumElements(shape)) {
    return InvalidArgument({"Distribute: shape ", DimsToString(shape), " has ",
                            absl::StrCat(NumElements(shape)), " elements, got ",
                            absl::StrCat(values.size()), " values"});
  }
  DT_ASSIGN_OR_RETURN(const Spec* spec,
                      SpecOf(context, layout, shape, DTypeOf<T>::value, "Distribute"));
  if (!spec->on_mesh) return WithoutElements(context, spec);
  const Region region = Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
  // Not std::vector: vector<bool> has no elements to point at.
  const std::unique_ptr<T[]> mine(new T[spec->local_numel]);
  T* out = mine.get();
  if (spec->local_numel > 0) TakeRegion(values.data(), shape, absl::MakeConstSpan(region), out);
  auto local = FromHost<T>(context.device(), absl::MakeConstSpan(mine.get(), spec->local_numel),
                           spec->local_shape);
  if (!local.ok()) return context.communicator().Fail(local.status());
  return DistributedTensor(MakeImpl(context, spec, *std::move(local)));
}

template <typename T>
TensorOr Distribute(Context& context, const DeviceMesh& mesh,
                    absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                    absl::Span<const T> values) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return Distribute(context, layout, shape, values);
}

TensorOr FromLocal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                   Tensor local) {
  if (!local.defined()) return InvalidArgument({"FromLocal: the local tensor is undefined"});
  DT_ASSIGN_OR_RETURN(const Spec* spec, context.Intern(layout, shape, local.dtype()));
  if (local.shape() != spec->local_shape) {
    return InvalidArgument({"FromLocal: rank ", absl::StrCat(context.rank()), " holds ",
                            DimsToString(spec->local_shape), " of ", spec->ToString(),
                            ", got a local tensor of shape ", DimsToString(local.shape())});
  }
  return DistributedTensor(MakeImpl(context, spec, std::move(local)));
}

TensorOr Full(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
              double value) {
  DT_ASSIGN_OR_RETURN(const Spec* spec, SpecOf(context, layout, shape, dtype, "Full"));
  DT_ASSIGN_OR_RETURN(Tensor local, NewLocal(context, spec));
  if (absl::Status status = kernels::Fill(context.device(), local, value); !status.ok()) {
    return context.communicator().Fail(status);
  }
  return DistributedTensor(MakeImpl(context, spec, std::move(local)));
}

TensorOr FromLocal(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                   absl::Span<const int64_t> shape, Tensor local) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return FromLocal(context, layout, shape, std::move(local));
}

TensorOr Full(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
              absl::Span<const int64_t> shape, DType dtype, double value) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return Full(context, layout, shape, dtype, value);
}

TensorOr RandomNormal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      const RandomOptions& options) {
  if (!IsFloat(options.dtype)) {
    return InvalidArgument({"RandomNormal: makes floating numbers, not ", ToString(options.dtype)});
  }
  DT_ASSIGN_OR_RETURN(const Spec* spec,
                      SpecOf(context, layout, shape, options.dtype, "RandomNormal"));
  if (!spec->on_mesh) return WithoutElements(context, spec);
  DT_ASSIGN_OR_RETURN(Tensor local, NewLocal(context, spec));
  const Region region = Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
  if (absl::Status status =
          kernels::RandomNormal(context.device(), region, shape, options.seed, options.stream,
                                options.mean, options.stddev, local);
      !status.ok()) {
    return context.communicator().Fail(status);
  }
  return DistributedTensor(MakeImpl(context, spec, std::move(local)));
}

TensorOr RandomNormal(Context& context, const DeviceMesh& mesh,
                      absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                      const RandomOptions& options) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return RandomNormal(context, layout, shape, options);
}

template <typename T>
absl::StatusOr<std::vector<T>> ToGlobal(const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"ToGlobal: the tensor is undefined"});
  if (tensor.dtype() != DTypeOf<T>::value) {
    return InvalidArgument({"ToGlobal: the tensor holds ", ToString(tensor.dtype()), ", asked for ",
                            ToString(DTypeOf<T>::value), "; Cast it first"});
  }
  if (!tensor.spec().on_mesh) {
    return InvalidArgument({"ToGlobal: rank ", absl::StrCat(tensor.context().rank()),
                            " is not on the mesh of ", tensor.ToString(),
                            "; read it on the ranks of its mesh, or Redistribute it"});
  }
  const NoGrad no_grad(tensor.context());
  // A copy of the handle that remembers nothing, so that reading a tensor leaves no gathered copy
  // behind.
  DT_ASSIGN_OR_RETURN(
      const DistributedTensor whole,
      tensor.Detach().Redistribute(Layout::Replicated(tensor.mesh(), tensor.rank())));
  return ToHost<T>(whole.local());
}

absl::StatusOr<double> Item(const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"Item: the tensor is undefined"});
  if (NumElements(tensor.shape()) != 1 || !IsFloat(tensor.dtype())) {
    return InvalidArgument({"Item: needs one floating number, got ", tensor.ToString()});
  }
  return VisitDType(tensor.dtype(), [&](auto zero) -> absl::StatusOr<double> {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      return InvalidArgument({"Item: needs a floating number"});
    } else {
      DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToGlobal<T>(tensor));
      return static_cast<double>(
          static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(values[0]));
    }
  });
}

#define DT_INSTANTIATE(T)                                                                   \
  template TensorOr Distribute<T>(Context&, const Layout&, absl::Span<const int64_t>,       \
                                  absl::Span<const T>);                                     \
  template TensorOr Distribute<T>(Context&, const DeviceMesh&, absl::Span<const Placement>, \
                                  absl::Span<const int64_t>, absl::Span<const T>);          \
  template absl::StatusOr<std::vector<T>> ToGlobal<T>(const DistributedTensor&)
DT_INSTANTIATE(float);
DT_INSTANTIATE(double);
DT_INSTANTIATE(BFloat16);
DT_INSTANTIATE(Float16);
DT_INSTANTIATE(int32_t);
DT_INSTANTIATE(int64_t);
DT_INSTANTIATE(bool);
#undef DT_INSTANTIATE

}  // namespace dtensor
