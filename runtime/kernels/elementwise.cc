#include "dtensor/runtime/kernels/elementwise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/elementwise_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/cpu/elementwise.h"
#include "dtensor/runtime/kernels/cuda/elementwise.h"

namespace dtensor::kernels {
namespace {

// Operands that are only padding (see AddN) cost nothing.
KernelWork WorkOf(const AddNArgs& args) { return {.bytes = BytesOf(args.operands, args.terms)}; }

KernelWork WorkOf(const FillArgs& args) {
  return {.bytes = Bytes(DistinctElements(args.loop, 0), args.dtype)};
}

constexpr ByDevice<BinaryArgs> kBinary = {.name = "Binary",
                                          .host = cpu::Binary,
                                          .cuda = DT_ON_CUDA(cuda::Binary),
                                          .work = WorkOnOperands<BinaryArgs>};
constexpr ByDevice<UnaryArgs> kUnary = {.name = "Unary",
                                        .host = cpu::Unary,
                                        .cuda = DT_ON_CUDA(cuda::Unary),
                                        .work = WorkOnOperands<UnaryArgs>};
constexpr ByDevice<AffineArgs> kAffine = {.name = "Affine",
                                          .host = cpu::Affine,
                                          .cuda = DT_ON_CUDA(cuda::Affine),
                                          .work = WorkOnOperands<AffineArgs>};
constexpr ByDevice<FillArgs> kFill = {
    .name = "Fill", .host = cpu::Fill, .cuda = DT_ON_CUDA(cuda::Fill), .work = WorkOf};
constexpr ByDevice<AddNArgs> kAddN = {
    .name = "AddN", .host = cpu::AddN, .cuda = DT_ON_CUDA(cuda::AddN), .work = WorkOf};
constexpr ByDevice<PowArgs> kPow = {.name = "Pow",
                                    .host = cpu::Pow,
                                    .cuda = DT_ON_CUDA(cuda::Pow),
                                    .work = WorkOnOperands<PowArgs>};
constexpr ByDevice<PowGradArgs> kPowGrad = {.name = "PowGrad",
                                            .host = cpu::PowGrad,
                                            .cuda = DT_ON_CUDA(cuda::PowGrad),
                                            .work = WorkOnOperands<PowGradArgs>};
constexpr ByDevice<UnaryGradArgs> kUnaryGrad = {.name = "UnaryGrad",
                                                .host = cpu::UnaryGrad,
                                                .cuda = DT_ON_CUDA(cuda::UnaryGrad),
                                                .work = WorkOnOperands<UnaryGradArgs>};
constexpr ByDevice<BinaryGradArgs> kBinaryGrad = {.name = "BinaryGrad",
                                                  .host = cpu::BinaryGrad,
                                                  .cuda = DT_ON_CUDA(cuda::BinaryGrad),
                                                  .work = WorkOnOperands<BinaryGradArgs>};
constexpr ByDevice<SiluMulArgs> kSiluMul = {.name = "SiluMul",
                                            .host = cpu::SiluMul,
                                            .cuda = DT_ON_CUDA(cuda::SiluMul),
                                            .work = WorkOnOperands<SiluMulArgs>};
constexpr ByDevice<SiluMulGradArgs> kSiluMulGrad = {.name = "SiluMulGrad",
                                                    .host = cpu::SiluMulGrad,
                                                    .cuda = DT_ON_CUDA(cuda::SiluMulGrad),
                                                    .work = WorkOnOperands<SiluMulGradArgs>};
constexpr ByDevice<ClampedSwiGluArgs> kClampedSwiGlu = {.name = "ClampedSwiGlu",
                                                        .host = cpu::ClampedSwiGlu,
                                                        .cuda = DT_ON_CUDA(cuda::ClampedSwiGlu),
                                                        .work = WorkOnOperands<ClampedSwiGluArgs>};
constexpr ByDevice<ClampedSwiGluGradArgs> kClampedSwiGluGrad = {
    .name = "ClampedSwiGluGrad",
    .host = cpu::ClampedSwiGluGrad,
    .cuda = DT_ON_CUDA(cuda::ClampedSwiGluGrad),
    .work = WorkOnOperands<ClampedSwiGluGradArgs>};

void CheckAlike(const Tensor& a, const Tensor& b) {
  DT_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype());
}

void CheckOut(const Tensor& in, const Tensor& out) {
  DT_CHECK(out.shape() == in.shape());
  DT_CHECK(out.is_contiguous());
}

// Checks that all have one shape and one float type.
void CheckFloats(std::initializer_list<const Tensor*> inputs,
                 std::initializer_list<const Tensor*> outputs) {
  const Tensor& first = **inputs.begin();
  DT_CHECK(IsFloat(first.dtype()));
  for (const Tensor* input : inputs) CheckAlike(first, *input);
  for (const Tensor* output : outputs) {
    CheckAlike(first, *output);
    CheckOut(first, *output);
  }
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

absl::Status AddN(Device& device, absl::Span<const Tensor> terms, const Tensor& out) {
  DT_CHECK(!terms.empty() && terms.size() <= kMaxTerms && out.dtype() != DType::kBool);
  // Unused operands repeat one of the terms, since a GPU reads them too. They cannot be the output,
  // which has no values yet. A contiguous term is preferred: it is the cheapest to walk over.
  const auto* const dense =
      std::find_if(terms.begin(), terms.end(), [](const Tensor& t) { return t.is_contiguous(); });
  std::array<const Tensor*, kMaxTerms> inputs;
  inputs.fill(dense == terms.end() ? &terms[0] : &*dense);
  for (size_t i = 0; i < terms.size(); ++i) {
    CheckAlike(terms[i], out);
    inputs[i] = &terms[i];
  }
  CheckOut(terms[0], out);
  const AddNArgs args = {out.dtype(), static_cast<int>(terms.size()), {inputs, {&out}}};
  return kAddN.Run(device, {out.dtype()}, args);
}

absl::Status Unary(Device& device, UnaryOp op, const Tensor& a, const Tensor& out) {
  CheckOut(a, out);
  if (op != UnaryOp::kCopy) {
    DT_CHECK(a.dtype() == out.dtype());
    DT_CHECK(op == UnaryOp::kNot
                 ? a.dtype() == DType::kBool
                 : IsFloat(a.dtype()) || (op == UnaryOp::kNeg && a.dtype() != DType::kBool));
  }
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

absl::Status Pow(Device& device, const Tensor& a, double exponent, const Tensor& out) {
  CheckFloats({&a}, {&out});
  return kPow.Run(device, {a.dtype()}, {a.dtype(), exponent, {{&a}, {&out}}});
}

absl::Status PowGrad(Device& device, const Tensor& x, double exponent, const Tensor& dy,
                     const Tensor& dx) {
  CheckFloats({&x, &dy}, {&dx});
  if (exponent == 0) return Fill(device, dx, 0);  // not 0 * dy, which may be NaN
  return kPowGrad.Run(device, {x.dtype()}, {x.dtype(), exponent, {{&x, &dy}, {&dx}}});
}

absl::Status UnaryGrad(Device& device, UnaryOp op, const Tensor& saved, const Tensor& dy,
                       const Tensor& dx) {
  CheckFloats({&saved, &dy}, {&dx});
  DT_CHECK(op != UnaryOp::kCopy && op != UnaryOp::kNot && op != UnaryOp::kNeg);
  return kUnaryGrad.Run(device, {dy.dtype()}, {op, dy.dtype(), {{&saved, &dy}, {&dx}}});
}

absl::Status BinaryGrad(Device& device, BinaryOp op, int operand, const Tensor& a, const Tensor& b,
                        const Tensor& dy, const Tensor& dx) {
  CheckFloats({&a, &b, &dy}, {&dx});
  DT_CHECK(op == BinaryOp::kDiv || op == BinaryOp::kMax || op == BinaryOp::kMin);
  DT_CHECK(operand == 0 || operand == 1);
  return kBinaryGrad.Run(device, {dy.dtype()}, {op, operand, dy.dtype(), {{&a, &b, &dy}, {&dx}}});
}

absl::Status SiluMul(Device& device, const Tensor& gate, const Tensor& up, const Tensor& y) {
  CheckFloats({&gate, &up}, {&y});
  return kSiluMul.Run(device, {gate.dtype()}, {gate.dtype(), {{&gate, &up}, {&y}}});
}

absl::Status SiluMulGrad(Device& device, const Tensor& gate, const Tensor& up, const Tensor& dy,
                         const Tensor& dgate, const Tensor& dup) {
  CheckFloats({&gate, &up, &dy}, {&dgate, &dup});
  return kSiluMulGrad.Run(device, {gate.dtype()},
                          {gate.dtype(), {{&gate, &up, &dy}, {&dgate, &dup}}});
}

absl::Status ClampedSwiGlu(Device& device, const Tensor& gate, const Tensor& up,
                           const SwiGluClamp& clamp, const Tensor& y) {
  CheckFloats({&gate, &up}, {&y});
  return kClampedSwiGlu.Run(device, {gate.dtype()},
                            {gate.dtype(), clamp.slope, clamp.limit, {{&gate, &up}, {&y}}});
}

absl::Status ClampedSwiGluGrad(Device& device, const Tensor& gate, const Tensor& up,
                               const SwiGluClamp& clamp, const Tensor& dy, const Tensor& dgate,
                               const Tensor& dup) {
  CheckFloats({&gate, &up, &dy}, {&dgate, &dup});
  return kClampedSwiGluGrad.Run(
      device, {gate.dtype()},
      {gate.dtype(), clamp.slope, clamp.limit, {{&gate, &up, &dy}, {&dgate, &dup}}});
}

}  // namespace dtensor::kernels
