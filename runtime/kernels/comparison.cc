#include "dtensor/runtime/kernels/comparison.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/comparison.h"
#include "dtensor/runtime/kernels/cuda/comparison.h"

namespace dtensor::kernels {
namespace {

constexpr ByDevice<CompareArgs> kCompare = {.name = "Compare",
                                            .host = cpu::Compare,
                                            .cuda = DT_ON_CUDA(cuda::Compare),
                                            .work = WorkOnOperands<CompareArgs>};
constexpr ByDevice<WhereArgs> kWhere = {.name = "Where",
                                        .host = cpu::Where,
                                        .cuda = DT_ON_CUDA(cuda::Where),
                                        .work = WorkOnOperands<WhereArgs>};

}  // namespace

absl::Status Compare(Device& device, CompareOp op, const Tensor& a, const Tensor& b,
                     const Tensor& out) {
  if (op == CompareOp::kGreater) return Compare(device, CompareOp::kLess, b, a, out);
  if (op == CompareOp::kGreaterEqual) return Compare(device, CompareOp::kLessEqual, b, a, out);
  DT_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype());
  DT_CHECK(a.shape() == out.shape() && out.dtype() == DType::kBool && out.is_contiguous());
  return kCompare.Run(device, {a.dtype()}, {op, a.dtype(), {{&a, &b}, {&out}}});
}

absl::Status Where(Device& device, const Tensor& condition, const Tensor& a, const Tensor& b,
                   const Tensor& out) {
  DT_CHECK(condition.dtype() == DType::kBool && condition.shape() == out.shape());
  for (const Tensor* in : {&a, &b}) {
    DT_CHECK(in->shape() == out.shape() && in->dtype() == out.dtype());
  }
  DT_CHECK(out.is_contiguous());
  return kWhere.Run(device, {out.dtype()}, {{{&condition, &a, &b}, {&out}}});
}

}  // namespace dtensor::kernels
