// MatMul and Linear: Device::Gemm on local matrices, transposed by strides and never by copies.
#include <algorithm>

#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// A local tensor as GemmProblem takes it.
struct Operand {
  Tensor kept;  // whose memory it is, if not an operand's
  int64_t rows = 0, cols = 0;
  GemmMatrix matrix;

  Operand Transposed() const {
    Operand out = *this;
    std::swap(out.rows, out.cols);
    std::swap(out.matrix.row_stride, out.matrix.col_stride);
    return out;
  }
};

// Strides that GemmProblem accepts, row-major or column-major without overlaps; false if only a
// copy has them. The stride of a dimension of size 1 says nothing and may be chosen.
bool SetStrides(const Tensor& x, Operand& out) {
  const int64_t row_stride = x.strides()[0], col_stride = x.strides()[1];
  const bool one_row = out.rows <= 1, one_col = out.cols <= 1;
  if (one_col || col_stride == 1) {
    if (!one_row && row_stride < std::max<int64_t>(out.cols, 1)) return false;
    out.matrix.row_stride = one_row ? std::max<int64_t>(out.cols, 1) : row_stride;
    out.matrix.col_stride = 1;
    return true;
  }
  if (!one_row && row_stride != 1) return false;
  if (col_stride < std::max<int64_t>(out.rows, 1)) return false;
  out.matrix.row_stride = 1;
  out.matrix.col_stride = col_stride;
  return true;
}

// [..., n] as a matrix of n columns.
absl::StatusOr<Operand> AsMatrix(Device& device, const Tensor& x) {
  Operand out;
  out.cols = x.shape().back();
  out.rows = NumElements(absl::MakeConstSpan(x.shape()).first(x.ndim() - 1));
  if (x.ndim() == 2 && SetStrides(x, out)) {
    out.matrix.data = x.raw();
    return out;
  }
  const int64_t shape[] = {out.rows, out.cols};
  DT_ASSIGN_OR_RETURN(out.kept, ReshapeLocal(device, x, shape));
  if (!SetStrides(out.kept, out)) {
    DT_ASSIGN_OR_RETURN(out.kept, Contiguous(device, out.kept));
    DT_CHECK(SetStrides(out.kept, out));
  }
  out.matrix.data = out.kept.raw();
  return out;
}

// out = a b; `out` is row-major.
absl::Status Gemm(Device& device, const Operand& a, const Operand& b, const Tensor& out) {
  DT_CHECK(a.cols == b.rows && out.numel() == a.rows * b.cols);
  if (out.numel() == 0) return absl::OkStatus();
  if (a.cols == 0) return kernels::Fill(device, out, 0);  // an empty sum
  GemmProblem gemm;
  gemm.dtype = gemm.out_dtype = out.dtype();
  gemm.m = a.rows;
  gemm.n = b.cols;
  gemm.k = a.cols;
  gemm.a = a.matrix;
  gemm.b = b.matrix;
  gemm.c = {out.raw(), b.cols, 1, 0};
  return device.Gemm(gemm);
}

absl::Status MatMulForward(const OpCall& call) {
  DT_ASSIGN_OR_RETURN(const Operand a, AsMatrix(call.device(), call.operands[0]));
  DT_ASSIGN_OR_RETURN(const Operand b, AsMatrix(call.device(), call.operands[1]));
  return Gemm(call.device(), a, b, call.results[0]);
}

// c = a b: da = dc b^T, db = a^T dc.
absl::Status MatMulBackward(const GradCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const Operand dc, AsMatrix(device, call.result_gradients[0]));
  if (call.wants(0)) {
    DT_ASSIGN_OR_RETURN(const Operand b, AsMatrix(device, call.operands[1]));
    DT_RETURN_IF_ERROR(Gemm(device, dc, b.Transposed(), call.gradients[0]));
  }
  if (call.wants(1)) {
    DT_ASSIGN_OR_RETURN(const Operand a, AsMatrix(device, call.operands[0]));
    DT_RETURN_IF_ERROR(Gemm(device, a.Transposed(), dc, call.gradients[1]));
  }
  return absl::OkStatus();
}

absl::Status LinearForward(const OpCall& call) {
  DT_ASSIGN_OR_RETURN(const Operand x, AsMatrix(call.device(), call.operands[0]));
  DT_ASSIGN_OR_RETURN(const Operand w, AsMatrix(call.device(), call.operands[1]));
  return Gemm(call.device(), x, w.Transposed(), call.results[0]);
}

// y = x w^T: dx = dy w, dw = dy^T x.
absl::Status LinearBackward(const GradCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const Operand dy, AsMatrix(device, call.result_gradients[0]));
  if (call.wants(0)) {
    DT_ASSIGN_OR_RETURN(const Operand w, AsMatrix(device, call.operands[1]));
    DT_RETURN_IF_ERROR(Gemm(device, dy, w, call.gradients[0]));
  }
  if (call.wants(1)) {
    DT_ASSIGN_OR_RETURN(const Operand x, AsMatrix(device, call.operands[0]));
    DT_RETURN_IF_ERROR(Gemm(device, dy.Transposed(), x, call.gradients[1]));
  }
  return absl::OkStatus();
}

const OpDef kMatMulOp = {
    .name = "MatMul",
    .rule = "m k, k n -> m n",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Floats(),
    .host = {MatMulForward, MatMulBackward},
    .saved_operands = 0b11,
};

const OpDef kLinearOp = {
    .name = "Linear",
    .rule = "... k, n k -> ... n",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Floats(),
    .host = {LinearForward, LinearBackward},
    .saved_operands = 0b11,
};

}  // namespace

absl::Span<const OpDef* const> MatMulOps() {
  static constexpr const OpDef* kOps[] = {&kMatMulOp, &kLinearOp};
  return kOps;
}

}  // namespace internal

TensorOr MatMul(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kMatMulOp, {&a, &b});
}

TensorOr Linear(const TensorOr& x, const TensorOr& weight) {
  return Dispatch(internal::kLinearOp, {&x, &weight});
}

}  // namespace dtensor
