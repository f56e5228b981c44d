#include "dtensor/tensor/distributed_tensor.h"

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/new_tensor.h"
#include "dtensor/tensor/op.h"
#include "dtensor/tensor/op_checks.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

Context& DistributedTensor::context() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::context()");
  return *impl_->context;
}
const Spec& DistributedTensor::spec() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::spec()");
  return *impl_->spec;
}
const Tensor& DistributedTensor::local() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::local()");
  Settle(*impl_).IgnoreError();
  return impl_->local;
}
bool DistributedTensor::requires_grad() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::requires_grad()");
  return impl_->requires_grad;
}
absl::Status DistributedTensor::set_requires_grad(bool on) {
  if (!defined()) return InvalidArgument({"set_requires_grad: the tensor is undefined"});
  if (on && !IsFloat(dtype())) {
    return InvalidArgument({"set_requires_grad: only floating numbers have gradients, got ",
                            ToString(), "; Cast it first"});
  }
  if (impl_->edge.wanted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("set_requires_grad: ", ToString(),
                     " is the result of a recorded operator; Detach() it first"));
  }
  impl_->requires_grad = on;
  if (!impl_->remembers()) impl_->remembered.clear();
  return absl::OkStatus();
}
DistributedTensor DistributedTensor::grad() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::grad()");
  return DistributedTensor(impl_->grad);
}
void DistributedTensor::ClearGrad() {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::ClearGrad()");
  impl_->grad = nullptr;
}
DType DistributedTensor::grad_dtype() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::grad_dtype()");
  return impl_->grad_dtype.value_or(dtype());
}
absl::Status DistributedTensor::set_grad_dtype(DType dtype) {
  if (!defined()) return InvalidArgument({"set_grad_dtype: the tensor is undefined"});
  const DType own = this->dtype();
  if (!IsFloat(own) || (dtype != own && dtype != AccumulatorOf(own))) {
    return InvalidArgument({"set_grad_dtype: ", ToString(), " has no gradient of type ",
                            dtensor::ToString(dtype), "; take its own type, or f32 for bf16 and ",
                            "f16"});
  }
  if (impl_->edge.wanted()) {
    return absl::FailedPreconditionError(
        absl::StrCat("set_grad_dtype: ", ToString(),
                     " is the result of a recorded operator, no leaf; Detach() it first"));
  }
  if (impl_->grad != nullptr && impl_->grad->spec->dtype != dtype) {
    return absl::FailedPreconditionError(
        absl::StrCat("set_grad_dtype: ", ToString(), " has a gradient of type ",
                     dtensor::ToString(impl_->grad->spec->dtype), "; ClearGrad() first"));
  }
  impl_->grad_dtype = dtype;
  return absl::OkStatus();
}
bool DistributedTensor::pinned() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::pinned()");
  return impl_->pinned;
}
void DistributedTensor::set_pinned(bool on) {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::set_pinned()");
  impl_->pinned = on;
  if (!impl_->remembers()) impl_->remembered.clear();
}

DistributedTensor DistributedTensor::Detach() const {
  DT_REQUIRE_DEFINED(defined(), "DistributedTensor::Detach()");
  TensorImplPtr detached = MakeImpl(context(), impl_->spec, impl_->local, impl_->row_major);
  detached->lineage = impl_->lineage;
  detached->put_off = impl_->put_off;
  detached->is_expanded = impl_->is_expanded;
  if (const Unsettled* const from = impl_->unsettled.get(); from != nullptr) {
    detached->unsettled = std::make_unique<Unsettled>();
    detached->unsettled->pending = from->pending;
    detached->unsettled->pending_result = from->pending_result;
    detached->unsettled->late = from->late;  // the same memory, whose values are made once for both
    detached->unsettled->consumed = from->consumed;
    if (from->view != nullptr)
      detached->unsettled->view = std::make_unique<CopiedView>(*from->view);
  }
  return DistributedTensor(std::move(detached));
}

absl::StatusOr<DistributedTensor> DistributedTensor::Redistribute(
    const Layout& layout, const RedistributeOptions& options) const {
  if (!defined()) return InvalidArgument({"Redistribute: the tensor is undefined"});
  const bool recorded = context().recording() && WantsGradient(*impl_);
  if (recorded && ReducesByAnotherOpThanSum(impl_->spec->layout, layout)) {
    return NoGradientPasses("Redistribute", "the tensor", *impl_->spec);
  }
  const DType type = options.dtype.value_or(dtype());
  if (options.plan.has_value() && options.plan->dtype.value_or(type) != type) {
    return InvalidArgument({"Redistribute: options.plan->dtype is ",
                            dtensor::ToString(*options.plan->dtype), ", and the result is ",
                            dtensor::ToString(type), "; set RedistributeOptions::dtype"});
  }
  if (type != dtype() && (recorded || !ConvertsOnTheWay(dtype(), type))) {
    return InvalidArgument(
        {"Redistribute: ", dtensor::ToString(dtype()), " becomes ", dtensor::ToString(type),
         " on the way only between f32, bf16 and f16, ",
         "and where no gradient is recorded; use Cast, and Redistribute what has ", "fewer bytes"});
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr target, context().Intern(layout, shape(), type));
  TensorImplPtr moved;
  const ExchangeCaller caller = RedistributeCaller(*impl_, *target);
  const bool plain = !options.plan.has_value() && !options.async && type == dtype();
  if (plain || target == impl_->spec) {
    DT_ASSIGN_OR_RETURN(moved, RedistributedValue(impl_, target, caller, options.on_use));
    return DistributedTensor(std::move(moved));
  }
  const RedistributionOptions* const chosen = options.plan.has_value() ? &*options.plan : nullptr;
  DT_ASSIGN_OR_RETURN(auto plan, context().Plan(impl_->spec, target, chosen));
  DT_ASSIGN_OR_RETURN(moved, RedistributeBy(impl_, target, std::move(plan), options.async, caller));
  return DistributedTensor(std::move(moved));
}

absl::StatusOr<DistributedTensor> DistributedTensor::Redistribute(
    absl::Span<const Placement> placements, const RedistributeOptions& options) const {
  if (!defined()) return InvalidArgument({"Redistribute: the tensor is undefined"});
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh(), placements, shape()));
  return Redistribute(layout, options);
}

namespace {

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
  for (const IndexRun& run : region[0].runs()) {
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

}  // namespace

template <typename T>
TensorOr Distribute(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                    absl::Span<const T> values) {
  DT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements("Distribute", shape));
  if (static_cast<int64_t>(values.size()) != elements) {
    return InvalidArgument({"Distribute: shape ", DimsToString(shape), " has ",
                            absl::StrCat(elements), " elements, got ", absl::StrCat(values.size()),
                            " values"});
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr spec,
                      internal::SpecOf(context, layout, shape, DTypeOf<T>(), "Distribute"));
  if (!spec->on_mesh) return internal::WithoutElements(context, spec, "Distribute");
  const Region region = Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
  // Not std::vector, because vector<bool> has no bool elements in memory.
  const std::unique_ptr<T[]> mine(new (std::nothrow) T[spec->local_numel]);
  if (mine == nullptr) {
    return context.communicator().Fail(absl::ResourceExhaustedError(absl::StrCat(
        "Distribute: the system has no memory for the host's copy of ", spec->ToString())));
  }
  T* out = mine.get();
  if (spec->local_numel > 0) TakeRegion(values.data(), shape, absl::MakeConstSpan(region), out);
  auto local = FromHost<T>(context.device(), absl::MakeConstSpan(mine.get(), spec->local_numel),
                           spec->local_shape);
  if (!local.ok()) return context.communicator().Fail(local.status());
  return internal::Made(context, spec, *std::move(local), /*row_major=*/true, "Distribute");
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
  if (&local.device() != &context.device()) {
    return InvalidArgument({"FromLocal: the local tensor lies on another device (",
                            ToString(local.device().kind()), ") than this rank's (",
                            ToString(context.device().kind()),
                            "): each rank of each world has its ",
                            "own; make it on context.device(), or copy it there"});
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr spec, context.Intern(layout, shape, local.dtype()));
  if (local.shape() != spec->local_shape) {
    return InvalidArgument({"FromLocal: rank ", absl::StrCat(context.rank()), " holds ",
                            DimsToString(spec->local_shape), " of ", spec->ToString(),
                            ", got a local tensor of shape ", DimsToString(local.shape())});
  }
  return internal::Made(context, spec, std::move(local), /*row_major=*/false, "FromLocal");
}

TensorOr FromLocal(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                   absl::Span<const int64_t> shape, Tensor local) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return FromLocal(context, layout, shape, std::move(local));
}

template <typename T>
absl::StatusOr<std::vector<T>> ToGlobal(const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"ToGlobal: the tensor is undefined"});
  if (tensor.dtype() != DTypeOf<T>()) {
    return InvalidArgument({"ToGlobal: the tensor holds ", ToString(tensor.dtype()), ", asked for ",
                            ToString(DTypeOf<T>()), "; Cast it first"});
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
      tensor.Detach().Redistribute(Layout::Replicated(tensor.mesh(), tensor.ndim())));
  DT_RETURN_IF_ERROR(Settle(*whole.impl()));
  auto values = ToHost<T>(whole.local());
  if (values.ok() || whole.context().device().is_meta()) return values;
  return whole.context().communicator().Fail(
      absl::Status(values.status().code(), absl::StrCat("ToGlobal: ", values.status().message())));
}

absl::StatusOr<double> Item(const DistributedTensor& tensor) {
  if (!tensor.defined()) return InvalidArgument({"Item: the tensor is undefined"});
  if (NumElements(tensor.shape()) != 1) {
    return InvalidArgument({"Item: needs one element, got ", tensor.ToString()});
  }
  return VisitDType(tensor.dtype(), [&](auto zero) -> absl::StatusOr<double> {
    using T = decltype(zero);
    DT_ASSIGN_OR_RETURN(const std::vector<T> values, ToGlobal<T>(tensor));
    const T value = values[0];
    return static_cast<double>(static_cast<std::conditional_t<sizeof(T) == 2, float, T>>(value));
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
