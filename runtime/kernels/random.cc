#include "dtensor/runtime/kernels/cuda/random.h"

#include <cmath>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

double BytesOf(const GlobalRuns& runs, DType dtype) {
  return Bytes(static_cast<double>(runs.size()), dtype);
}

KernelWork WorkOf(const RandomNormalArgs& args) {
  return {.bytes = BytesOf(args.runs, args.dtype)};
}

KernelWork WorkOf(const RandomUniformArgs& args) {
  return {.bytes = BytesOf(args.runs, args.dtype)};
}

KernelWork WorkOf(const DropoutArgs& args) {
  return {.bytes = kernels::BytesOf(args.x) + BytesOf(args.runs, args.dtype)};
}

constexpr ByDevice<RandomNormalArgs> kRandomNormal = {.name = "RandomNormal",
                                                      .host = cpu::RandomNormal,
                                                      .cuda = DT_ON_CUDA(cuda::RandomNormal),
                                                      .work = WorkOf};
constexpr ByDevice<RandomUniformArgs> kRandomUniform = {.name = "RandomUniform",
                                                        .host = cpu::RandomUniform,
                                                        .cuda = DT_ON_CUDA(cuda::RandomUniform),
                                                        .work = WorkOf};
constexpr ByDevice<DropoutArgs> kDropout = {
    .name = "Dropout", .host = cpu::Dropout, .cuda = DT_ON_CUDA(cuda::Dropout), .work = WorkOf};

void CheckRegion(absl::Span<const IndexSet> region, absl::Span<const int64_t> shape,
                 const Tensor& out) {
  DT_CHECK(IsFloat(out.dtype()) && out.is_contiguous());
  DT_CHECK(region.size() == shape.size() && region.size() == out.shape().size());
  for (size_t d = 0; d < region.size(); ++d) {
    DT_CHECK(region[d].size() == out.size(static_cast<int>(d)));
    DT_CHECK(region[d].empty() || region[d].runs().back().end() <= shape[d]);
  }
}

}  // namespace

absl::Status RandomNormal(Device& device, absl::Span<const IndexSet> region,
                          absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                          double mean, double stddev, const Tensor& out) {
  CheckRegion(region, shape, out);
  return kRandomNormal.Run(
      device, {out.dtype()},
      {out.dtype(), GlobalRuns(region, shape), {seed, stream}, mean, stddev, out.raw()});
}

absl::Status RandomUniform(Device& device, absl::Span<const IndexSet> region,
                           absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                           const Tensor& out) {
  CheckRegion(region, shape, out);
  return kRandomUniform.Run(device, {out.dtype()},
                            {out.dtype(), GlobalRuns(region, shape), {seed, stream}, out.raw()});
}

absl::Status Dropout(Device& device, const Tensor& x, absl::Span<const IndexSet> region,
                     absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream, double p,
                     const Tensor& out) {
  CheckRegion(region, shape, out);
  DT_CHECK(x.shape() == out.shape() && x.dtype() == out.dtype());
  DT_CHECK(p >= 0 && p <= 1);
  return kDropout.Run(
      device, {x.dtype()},
      {.dtype = x.dtype(),
       .x = StridedInput(x),
       .runs = GlobalRuns(region, shape),
       .key = {seed, stream},
       // Uses f32's uniform numbers for every type, so that all types get the same mask.
       .threshold = static_cast<uint32_t>(std::ceil(p * 0x1p24)),
       .scale = p < 1 ? 1 / (1 - p) : 0,
       .out = static_cast<std::byte*>(out.raw())});
}

}  // namespace dtensor::kernels
