#include "dtensor/runtime/kernels/elementwise.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/cpu/elementwise.h"

namespace dtensor::kernels {
namespace {

constexpr ByDevice<BinaryArgs> kBinary = {.name = "Binary", .host = cpu::Binary};
constexpr ByDevice<UnaryArgs> kUnary = {.name = "Unary", .host = cpu::Unary};
constexpr ByDevice<AffineArgs> kAffine = {.name = "Affine", .host = cpu::Affine};
constexpr ByDevice<FillArgs> kFill = {.name = "Fill", .host = cpu::Fill};
constexpr ByDevice<SiluGradArgs> kSiluGrad = {.name = "SiluGrad", .host = cpu::SiluGrad};
constexpr ByDevice<SiluMulArgs> kSiluMul = {.name = "SiluMul", .host = cpu::SiluMul};
constexpr ByDevice<SiluMulGradArgs> kSiluMulGrad = {.name = "SiluMulGrad",
                                                    .host = cpu::SiluMulGrad};

void CheckAlike(const Tensor& a, const Tensor& b) {
  DT_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype());
}

void CheckOut(const Tensor& in, const Tensor& out) {
  DT_CHECK(out.shape() == in.shape());
  DT_CHECK(out.is_contiguous());
}

}  // namespace

absl::Status Binary(Device& device, BinaryOp op, const Tensor& a, const Tensor& b,
                    const Tensor& out) {
  CheckAlike(a, b);
  CheckAlike(a, out);
  CheckOut(a, out);
  DT_CHECK(op != BinaryOp::kDiv || IsFloat(a.dtype()));
  return kBinary.Run(device, {a.dtype()}, {op, a.dtype(), {{&a, &b}, {&out}}});
}

absl::Status Unary(Device& device, UnaryOp op, const Tensor& a, const Tensor& out) {
  CheckOut(a, out);
  DT_CHECK(op == UnaryOp::kCopy || (a.dtype() == out.dtype() && IsFloat(a.dtype())));
  if (op == UnaryOp::kCopy && a.dtype() == out.dtype()) return Copy(device, a, out);
  return kUnary.Run(device, {a.dtype(), out.dtype()}, {op, a.dtype(), out.dtype(), {{&a}, {&out}}});
}

absl::Status Affine(Device& device, const Tensor& a, double scale, double shift,
                    const Tensor& out) {
  CheckAlike(a, out);
  CheckOut(a, out);
  DT_CHECK(a.dtype() != DType::kBool);
  return kAffine.Run(device, {a.dtype()}, {a.dtype(), scale, shift, {{&a}, {&out}}});
}

absl::Status Fill(Device& device, const Tensor& out, double value) {
  return kFill.Run(device, {out.dtype()},
                   {out.dtype(), value, out.raw(), {out.shape(), {out.strides()}}});
}

absl::Status SiluGrad(Device& device, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  CheckAlike(x, dy);
  CheckAlike(x, dx);
  CheckOut(x, dx);
  DT_CHECK(IsFloat(x.dtype()));
  return kSiluGrad.Run(device, {x.dtype()}, {x.dtype(), {{&x, &dy}, {&dx}}});
}

absl::Status SiluMul(Device& device, const Tensor& gate, const Tensor& up, const Tensor& y) {
  CheckAlike(gate, up);
  CheckAlike(gate, y);
  CheckOut(gate, y);
  DT_CHECK(IsFloat(gate.dtype()));
  return kSiluMul.Run(device, {gate.dtype()}, {gate.dtype(), {{&gate, &up}, {&y}}});
}

absl::Status SiluMulGrad(Device& device, const Tensor& gate, const Tensor& up, const Tensor& dy,
                         const Tensor& dgate, const Tensor& dup) {
  CheckAlike(gate, up);
  CheckAlike(gate, dy);
  for (const Tensor* out : {&dgate, &dup}) {
    CheckAlike(gate, *out);
    CheckOut(gate, *out);
  }
  DT_CHECK(IsFloat(gate.dtype()));
  return kSiluMulGrad.Run(device, {gate.dtype()},
                          {gate.dtype(), {{&gate, &up, &dy}, {&dgate, &dup}}});
}

}  // namespace dtensor::kernels
