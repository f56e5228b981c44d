#include "dtensor/runtime/kernels/reduce.h"

#include <algorithm>
#include <utility>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/arguments/reduce_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/reduce.h"
#include "dtensor/runtime/kernels/cuda/reduce.h"

namespace dtensor::kernels {
namespace {

KernelWork WorkOf(const ReduceArgs& args) {
  return {.bytes = Bytes(DistinctElements(args.kept, 0) * DistinctElements(args.reduced, 0),
                         args.dtype) +
                   Bytes(static_cast<double>(args.outputs), args.out_dtype)};
}

KernelWork WorkOf(const SumOfSquaresArgs& args) {
  return {.bytes = BytesOf(args.x) + Bytes(1, AccumulatorOf(args.dtype))};
}

KernelWork WorkOf(const BincountArgs& args) {
  return {.bytes = BytesOf(args.ids) + Bytes(static_cast<double>(args.bins), args.dtype)};
}

constexpr ByDevice<ReduceArgs> kReduce = {
    .name = "Reduce", .host = cpu::Reduce, .cuda = DT_ON_CUDA(cuda::Reduce), .work = WorkOf};
constexpr ByDevice<ReduceArgs> kMean = {
    .name = "Mean", .host = cpu::Reduce, .cuda = DT_ON_CUDA(cuda::Reduce), .work = WorkOf};
constexpr ByDevice<SumOfSquaresArgs> kSumOfSquares = {.name = "SumOfSquares",
                                                      .host = cpu::SumOfSquares,
                                                      .cuda = DT_ON_CUDA(cuda::SumOfSquares),
                                                      .work = WorkOf};
constexpr ByDevice<BincountArgs> kBincount = {
    .name = "Bincount", .host = cpu::Bincount, .cuda = DT_ON_CUDA(cuda::Bincount), .work = WorkOf};

// Sorts the dimensions into the order of memory, with broadcast ones outermost. The order in which
// all of them are combined is free.
void SortByStride(Dims& shape, Dims& strides) {
  for (size_t i = 1; i < shape.size(); ++i) {
    for (size_t d = i; d > 0; --d) {
      const bool outside = strides[d] == 0 ? strides[d - 1] != 0
                                           : strides[d - 1] != 0 && strides[d - 1] < strides[d];
      if (!outside) break;
      std::swap(shape[d - 1], shape[d]);
      std::swap(strides[d - 1], strides[d]);
    }
  }
}

ReduceArgs MakeReduction(ReduceOp op, const Tensor& x, absl::Span<const int> dims,
                         const Tensor& out) {
  Dims shape[2], strides[2];  // kept, reduced
  for (int d = 0; d < x.ndim(); ++d) {
    const bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    shape[reduced].push_back(x.size(d));
    strides[reduced].push_back(x.strides()[d]);
  }
  DT_CHECK(shape[1].size() == dims.size());  // in range and distinct
  SortByStride(shape[1], strides[1]);
  DT_CHECK(out.numel() == NumElements(shape[0]));
  return {op,
          x.dtype(),
          out.dtype(),
          x.raw(),
          out.raw(),
          out.numel(),
          StridedLoop<1>(shape[0], {strides[0]}),
          StridedLoop<1>(shape[1], {strides[1]})};
}

}  // namespace

absl::Status Reduce(Device& device, ReduceOp op, const Tensor& x, absl::Span<const int> dims,
                    const Tensor& out) {
  DT_CHECK(op != ReduceOp::kAvg);
  DT_CHECK(out.dtype() == x.dtype() || out.dtype() == AccumulatorOf(x.dtype()));
  DT_CHECK(out.is_contiguous());
  return kReduce.Run(device, {x.dtype(), out.dtype()}, MakeReduction(op, x, dims, out));
}

absl::Status Mean(Device& device, const Tensor& x, absl::Span<const int> dims, double count,
                  const Tensor& out) {
  DT_CHECK(IsFloat(x.dtype()) && out.dtype() == x.dtype() && out.is_contiguous());
  ReduceArgs args = MakeReduction(ReduceOp::kSum, x, dims, out);
  args.divisor = count;
  return kMean.Run(device, {x.dtype()}, args);
}

absl::Status SumOfSquares(Device& device, const Tensor& x, const Tensor& out) {
  DT_CHECK(IsFloat(x.dtype()) && out.numel() == 1);
  DT_CHECK(out.dtype() == AccumulatorOf(x.dtype()));
  Dims shape = x.shape(), strides = x.strides();
  SortByStride(shape, strides);
  const Tensor in_order = x.View(shape, strides, 0);
  return kSumOfSquares.Run(device, {x.dtype()}, {x.dtype(), {{&in_order}, {}}, out.raw()});
}

absl::Status Bincount(Device& device, const Tensor& ids, const Tensor& counts) {
  DT_CHECK(ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64);
  DT_CHECK(counts.dtype() == DType::kF32 || counts.dtype() == DType::kF64);
  DT_CHECK(counts.ndim() == 1 && counts.is_contiguous());
  return kBincount.Run(device, {ids.dtype(), counts.dtype()},
                       {.id_dtype = ids.dtype(),
                        .dtype = counts.dtype(),
                        .ids = StridedInput(ids),
                        .num_ids = ids.numel(),
                        .bins = counts.numel(),
                        .counts = counts.raw()});
}

}  // namespace dtensor::kernels
