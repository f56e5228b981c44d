#include "dtensor/runtime/kernels/extremum.h"

#include <algorithm>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/extremum_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/extremum.h"
#include "dtensor/runtime/kernels/cuda/extremum.h"

namespace dtensor::kernels {
namespace {

constexpr double kCountBytes = sizeof(int64_t);

KernelWork WorkOf(const ArgMaxStatsArgs& args) {
  const double row = args.stride == 0 && args.n > 1 ? 1 : static_cast<double>(args.n);
  return {.bytes = Bytes(DistinctElements(args.kept, 0) * row, args.dtype) +
                   Iterations(args.kept) * 2 * kCountBytes};
}

KernelWork WorkOf(const ArgMaxMergeArgs& args) {
  return {.bytes = BytesOf(args.stats) + static_cast<double>(args.rows) * kCountBytes};
}

KernelWork WorkOf(const CountTiesArgs& args) {
  return {.bytes =
              Bytes(DistinctElements(args.loop, 0) + DistinctElements(args.loop, 1), args.dtype) +
              static_cast<double>(args.outputs) * kCountBytes};
}

KernelWork WorkOf(const TopKArgs& args) {
  const double picks = Iterations(args.rows.loop) * static_cast<double>(args.k);
  return {.bytes = BytesOf(args.rows) + Bytes(picks, args.dtype) + picks * kCountBytes};
}

// Indices, and as many elements of x as of y.
KernelWork WorkOf(const TakeArgs& args) {
  const double picks = Iterations(args.rows.loop) * static_cast<double>(args.rows.n);
  return {.bytes = picks * kCountBytes + Bytes(2 * picks, args.dtype)};
}

KernelWork WorkOf(const TakeGradArgs& args) {
  return {.bytes = BytesOf(args.rows) + static_cast<double>(args.dx_bytes)};
}

constexpr ByDevice<ArgMaxStatsArgs> kArgMaxStats = {.name = "ArgMaxStats",
                                                    .host = cpu::ArgMaxStats,
                                                    .cuda = DT_ON_CUDA(cuda::ArgMaxStats),
                                                    .work = WorkOf};
constexpr ByDevice<ArgMaxMergeArgs> kArgMaxMerge = {.name = "ArgMaxMerge",
                                                    .host = cpu::ArgMaxMerge,
                                                    .cuda = DT_ON_CUDA(cuda::ArgMaxMerge),
                                                    .work = WorkOf};
constexpr ByDevice<CountTiesArgs> kCountTies = {.name = "CountTies",
                                                .host = cpu::CountTies,
                                                .cuda = DT_ON_CUDA(cuda::CountTies),
                                                .work = WorkOf};
constexpr ByDevice<ShareAmongTiesArgs> kShareAmongTies = {
    .name = "ShareAmongTies",
    .host = cpu::ShareAmongTies,
    .cuda = DT_ON_CUDA(cuda::ShareAmongTies),
    .work = WorkOnOperands<ShareAmongTiesArgs>};
constexpr ByDevice<TopKArgs> kTopK = {
    .name = "TopK", .host = cpu::TopK, .cuda = DT_ON_CUDA(cuda::TopK), .work = WorkOf};
constexpr ByDevice<TakeArgs> kTake = {
    .name = "Take", .host = cpu::Take, .cuda = DT_ON_CUDA(cuda::Take), .work = WorkOf};
constexpr ByDevice<TakeGradArgs> kTakeGrad = {
    .name = "TakeGrad", .host = cpu::TakeGrad, .cuda = DT_ON_CUDA(cuda::TakeGrad), .work = WorkOf};

// Broadcasts `reduced`, which has x's shape without dims, to a view of x's shape.
Tensor Spread(const Tensor& reduced, const Tensor& x, absl::Span<const int> dims) {
  Dims strides;
  int next = 0;
  for (int d = 0; d < x.ndim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) != dims.end()) {
      strides.push_back(0);
    } else {
      DT_CHECK(next < reduced.ndim() && reduced.size(next) == x.size(d));
      strides.push_back(reduced.strides()[next++]);
    }
  }
  DT_CHECK(next == reduced.ndim());
  // An empty tensor is not viewed: nothing is read.
  return reduced.numel() == 0 ? x : reduced.View(x.shape(), strides, 0);
}

}  // namespace

absl::Status ArgMaxStats(Device& device, const Tensor& x, int dim, const IndexSet& indices,
                         const Tensor& stats) {
  DT_CHECK(x.dtype() != DType::kBool && dim >= 0 && dim < x.ndim());
  DT_CHECK(indices.size() == x.size(dim));
  DT_CHECK(stats.dtype() == DType::kI64 && stats.is_contiguous());
  Dims shape = x.shape(), strides = x.strides();
  shape.erase(shape.begin() + dim);
  strides.erase(strides.begin() + dim);
  DT_CHECK(stats.numel() == 2 * NumElements(shape));
  return kArgMaxStats.Run(device, {x.dtype()},
                          {.dtype = x.dtype(),
                           .x = x.raw(),
                           .kept = StridedLoop<1>(shape, {strides}),
                           .n = x.size(dim),
                           .stride = x.strides()[dim],
                           .indices = indices,
                           .stats = stats.data<int64_t>()});
}

absl::Status ArgMaxMerge(Device& device, const Tensor& stats, const Tensor& out) {
  DT_CHECK(stats.ndim() >= 2 && stats.shape().back() == 2 && stats.dtype() == DType::kI64);
  DT_CHECK(out.dtype() == DType::kI64 && out.is_contiguous());
  DT_CHECK(stats.numel() == stats.size(0) * out.numel() * 2);
  return kArgMaxMerge.Run(device, {out.dtype()},
                          {.stats = StridedInput(stats),
                           .shards = stats.size(0),
                           .rows = out.numel(),
                           .out = out.data<int64_t>()});
}

absl::Status CountTies(Device& device, const Tensor& x, const Tensor& extremum,
                       absl::Span<const int> dims, const Tensor& count) {
  DT_CHECK(x.dtype() != DType::kBool && extremum.dtype() == x.dtype());
  DT_CHECK(count.dtype() == DType::kI64 && count.is_contiguous());
  const Tensor wide = Spread(extremum, x, dims), counts = Spread(count, x, dims);
  return kCountTies.Run(
      device, {x.dtype()},
      {.dtype = x.dtype(),
       .x = x.raw(),
       .extremum = extremum.raw(),
       .loop = StridedLoop<3>(x.shape(), {x.strides(), wide.strides(), counts.strides()}),
       .outputs = count.numel(),
       .count = count.data<int64_t>()});
}

absl::Status ShareAmongTies(Device& device, const Tensor& x, const Tensor& extremum,
                            absl::Span<const int> dims, const Tensor& count, const Tensor& dy,
                            const Tensor& dx) {
  DT_CHECK(IsFloat(x.dtype()) && extremum.dtype() == x.dtype() && dy.dtype() == x.dtype());
  DT_CHECK(count.dtype() == DType::kI64);
  DT_CHECK(dx.shape() == x.shape() && dx.dtype() == x.dtype() && dx.is_contiguous());
  const Tensor wide = Spread(extremum, x, dims), grad = Spread(dy, x, dims);
  const Tensor counts = Spread(count, x, dims);
  return kShareAmongTies.Run(
      device, {x.dtype()},
      {.dtype = x.dtype(), .operands = StridedOperands<4, 1>({&x, &wide, &grad, &counts}, {&dx})});
}

absl::Status TopK(Device& device, const Tensor& x, int64_t k, const Tensor& values,
                  const Tensor& indices) {
  DT_CHECK(x.dtype() != DType::kBool && x.ndim() >= 1);
  DT_CHECK(0 <= k && k <= x.shape().back());
  Dims shape = x.shape();
  shape.back() = k;
  DT_CHECK(values.shape() == shape && values.dtype() == x.dtype() && values.is_contiguous());
  DT_CHECK(indices.shape() == shape && indices.dtype() == DType::kI64 && indices.is_contiguous());
  return kTopK.Run(device, {x.dtype()},
                   {.dtype = x.dtype(),
                    .rows = RowOperands<1>({&x}),
                    .k = k,
                    .values = values.raw(),
                    .indices = indices.data<int64_t>()});
}

namespace {

// Whether the shapes differ in the size of the last dimension at most.
bool HaveSameRows(const Tensor& a, const Tensor& b) {
  if (a.ndim() != b.ndim() || a.ndim() < 1) return false;
  Dims shape = a.shape();
  shape.back() = b.shape().back();
  return shape == b.shape();
}

}  // namespace

absl::Status Take(Device& device, const Tensor& x, const Tensor& indices, const Tensor& y) {
  DT_CHECK(indices.dtype() == DType::kI64 && HaveSameRows(x, indices));
  DT_CHECK(y.shape() == indices.shape() && y.dtype() == x.dtype() && y.is_contiguous());
  return kTake.Run(device, {x.dtype()},
                   {.dtype = x.dtype(),
                    .rows = RowOperands<2>({&indices, &x}),
                    .n = x.shape().back(),
                    .y = y.raw()});
}

absl::Status TakeGrad(Device& device, const Tensor& indices, const Tensor& dy, const Tensor& dx) {
  DT_CHECK(IsFloat(dx.dtype()) && dx.is_contiguous());
  DT_CHECK(dy.dtype() == dx.dtype() && indices.dtype() == DType::kI64);
  DT_CHECK(indices.shape() == dy.shape() && HaveSameRows(dy, dx));
  return kTakeGrad.Run(device, {dx.dtype()},
                       {.dtype = dx.dtype(),
                        .rows = RowOperands<2>({&indices, &dy}),
                        .n = dx.shape().back(),
                        .dx = dx.raw(),
                        .dx_bytes = dx.bytes()});
}

}  // namespace dtensor::kernels
