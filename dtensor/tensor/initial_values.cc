// Tensors of constants, of numbers in order and of random numbers.
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/new_tensor.h"

namespace dtensor {
namespace {

// A tensor of floats whose shard `fill(region, local)` fills.
template <typename Fill>
TensorOr RandomTensor(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      DType dtype, const char* maker, Fill fill) {
  if (!IsFloat(dtype)) {
    return InvalidArgument({maker, ": makes floating numbers, not ", ToString(dtype)});
  }
  DT_ASSIGN_OR_RETURN(const SpecPtr spec, internal::SpecOf(context, layout, shape, dtype, maker));
  if (!spec->on_mesh) return internal::WithoutElements(context, spec, maker);
  DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context, spec));
  const Region region = Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
  if (absl::Status status = fill(region, local); !status.ok()) {
    return context.communicator().Fail(status);
  }
  return internal::Made(context, spec, std::move(local), /*row_major=*/true, maker);
}

// local[j] = start + i * step for the j-th index i.
absl::Status FillInOrder(Device& device, const IndexSet& indices, double start, double step,
                         const Tensor& local) {
  const int64_t shape[] = {indices.size()};
  if (device.is_meta()) {  // the same memory there
    DT_ASSIGN_OR_RETURN(const Tensor wide, Tensor::Empty(device, DType::kF64, shape));
    return kernels::Unary(device, kernels::UnaryOp::kCopy, wide, local);
  }
  const std::unique_ptr<double[]> numbers(new (std::nothrow) double[shape[0]]);
  if (numbers == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Arange: the system has no memory for ", shape[0], " numbers"));
  }
  double* out = numbers.get();
  for (const IndexRun& run : indices.runs()) {
    for (int64_t at = 0; at < run.size(); ++at) {
      const int64_t i = run.begin + at / run.length * run.stride + at % run.length;
      *out++ = start + static_cast<double>(i) * step;
    }
  }
  const auto all = absl::MakeConstSpan(numbers.get(), shape[0]);
  DT_ASSIGN_OR_RETURN(const Tensor wide, FromHost<double>(device, all, shape));
  return kernels::Unary(device, kernels::UnaryOp::kCopy, wide, local);
}

}  // namespace

TensorOr Full(Context& context, const Layout& layout, absl::Span<const int64_t> shape, DType dtype,
              double value) {
  DT_ASSIGN_OR_RETURN(const SpecPtr spec, internal::SpecOf(context, layout, shape, dtype, "Full"));
  DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context, spec));
  if (absl::Status status = kernels::Fill(context.device(), local, value); !status.ok()) {
    return context.communicator().Fail(status);
  }
  return internal::Made(context, spec, std::move(local), /*row_major=*/true, "Full");
}

TensorOr FullLike(const DistributedTensor& x, double value) {
  if (!x.defined()) return InvalidArgument({"FullLike: the tensor is undefined"});
  DT_ASSIGN_OR_RETURN(const Layout whole, x.layout().WithPartial({}));
  return Full(x.context(), whole, x.shape(), x.dtype(), value);
}

TensorOr FullLike(const DistributedTensor& x, double value, absl::Span<const int64_t> shape) {
  if (!x.defined()) return InvalidArgument({"FullLike: the tensor is undefined"});
  const Layout whole = Layout::Replicated(x.mesh(), static_cast<int>(shape.size()));
  return Full(x.context(), whole, shape, x.dtype(), value);
}

TensorOr Full(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
              absl::Span<const int64_t> shape, DType dtype, double value) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return Full(context, layout, shape, dtype, value);
}

TensorOr Arange(Context& context, const Layout& layout, int64_t n, DType dtype, double start,
                double step) {
  const int64_t shape[] = {n};
  DT_ASSIGN_OR_RETURN(const SpecPtr spec,
                      internal::SpecOf(context, layout, shape, dtype, "Arange"));
  if (!spec->on_mesh) return internal::WithoutElements(context, spec, "Arange");
  const Region region = Regions(layout, shape, layout.mesh().Coordinate(context.rank()));
  DT_ASSIGN_OR_RETURN(Tensor local, internal::NewLocal(context, spec));
  if (absl::Status status = FillInOrder(context.device(), region[0], start, step, local);
      !status.ok()) {
    return context.communicator().Fail(status);
  }
  return internal::Made(context, spec, std::move(local), /*row_major=*/true, "Arange");
}

TensorOr Arange(Context& context, const DeviceMesh& mesh, absl::Span<const Placement> placements,
                int64_t n, DType dtype, double start, double step) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, {n}));
  return Arange(context, layout, n, dtype, start, step);
}

TensorOr RandomNormal(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                      const RandomOptions& options) {
  const auto fill = [&](const Region& region, const Tensor& local) {
    return kernels::RandomNormal(context.device(), region, shape, options.seed, options.stream,
                                 options.mean, options.stddev, local);
  };
  return RandomTensor(context, layout, shape, options.dtype, "RandomNormal", fill);
}

TensorOr RandomNormal(Context& context, const DeviceMesh& mesh,
                      absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                      const RandomOptions& options) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return RandomNormal(context, layout, shape, options);
}

TensorOr RandomUniform(Context& context, const Layout& layout, absl::Span<const int64_t> shape,
                       const UniformOptions& options) {
  const DType computed = AccumulatorOf(options.dtype);
  const double range = options.high - options.low, most = computed == DType::kF64
                                                              ? std::numeric_limits<double>::max()
                                                              : std::numeric_limits<float>::max();
  if (!(options.low <= options.high) || range > most || options.low < -most ||
      options.high > most) {
    return InvalidArgument({"RandomUniform: there are no numbers from ", absl::StrCat(options.low),
                            " to ", absl::StrCat(options.high), " in ", ToString(options.dtype),
                            "; give the lower bound first, and a range that is finite"});
  }
  const auto fill = [&](const Region& region, const Tensor& local) -> absl::Status {
    Device& device = context.device();
    const bool is_unit = options.low == 0 && options.high == 1;
    Tensor wide = local;
    if (!is_unit && computed != options.dtype) {
      DT_ASSIGN_OR_RETURN(wide, Tensor::Empty(device, computed, local.shape()));
    }
    DT_RETURN_IF_ERROR(
        kernels::RandomUniform(device, region, shape, options.seed, options.stream, wide));
    if (is_unit) return absl::OkStatus();
    DT_RETURN_IF_ERROR(kernels::Affine(device, wide, range, options.low, wide));
    if (wide.dtype() == local.dtype()) return absl::OkStatus();
    return kernels::Unary(device, kernels::UnaryOp::kCopy, wide, local);
  };
  return RandomTensor(context, layout, shape, options.dtype, "RandomUniform", fill);
}

TensorOr RandomUniform(Context& context, const DeviceMesh& mesh,
                       absl::Span<const Placement> placements, absl::Span<const int64_t> shape,
                       const UniformOptions& options) {
  DT_ASSIGN_OR_RETURN(const Layout layout, Layout::FromPlacements(mesh, placements, shape));
  return RandomUniform(context, layout, shape, options);
}

}  // namespace dtensor
