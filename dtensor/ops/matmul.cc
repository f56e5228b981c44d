// MatMul and Linear: Device::Gemm on local matrices, transposed by strides and never by copies.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/batched_product.h"
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
  Tensor kept;  // owns the memory, if that is not an operand's
  int64_t rows = 0, cols = 0;
  GemmMatrix matrix;

  Operand Transposed() const {
    Operand out = *this;
    std::swap(out.rows, out.cols);
    std::swap(out.matrix.row_stride, out.matrix.col_stride);
    return out;
  }
};

// Sets strides that GemmProblem accepts: row-major or column-major without overlaps. Returns false
// if that needs a copy. The stride of a dimension of size 1 has no meaning and may be chosen.
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

// [..., n] as a matrix with n columns.
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

GemmProblem ProblemOf(const Operand& a, const Operand& b, const Tensor& out, bool accumulate) {
  GemmProblem gemm;
  gemm.accumulate = accumulate;
  gemm.dtype = gemm.out_dtype = out.dtype();
  gemm.m = a.rows;
  gemm.n = b.cols;
  gemm.k = a.cols;
  gemm.a = a.matrix;
  gemm.b = b.matrix;
  gemm.c = {out.raw(), b.cols, 1, 0};
  return gemm;
}

// out = a b, or out + a b; `out` is row-major.
absl::Status Gemm(Device& device, const Operand& a, const Operand& b, const Tensor& out,
                  bool accumulate = false) {
  DT_CHECK(a.cols == b.rows && out.numel() == a.rows * b.cols);
  if (out.numel() == 0) return absl::OkStatus();
  if (a.cols == 0) {  // an empty sum
    return accumulate ? absl::OkStatus() : kernels::Fill(device, out, 0);
  }
  return device.Gemm(ProblemOf(a, b, out, accumulate));
}

// Whether rows of x are rows of the product: rows of [..., m, k], whatever dimensions lie before m.
bool HasRows(const Decision& decision, int dim) {
  return decision.operands[1]->ndim() == 2 && dim < decision.operands[0]->ndim() - 1;
}

// Whether x is a matrix as AsMatrix sees it, with its rows one after the other.
absl::Status CheckRowMajor(const Tensor& x) {
  return x.is_contiguous() ? absl::OkStatus()
                           : absl::UnimplementedError("the operand of a product is not row-major");
}

// Computes rows of out = a b, or of out + a b: indices [begin, end) of dimension `dim` of the
// tensors which `a` (row-major) and `out` represent as matrices. Makes one product for each index
// of the dimensions before `dim`.
absl::Status GemmRows(Device& device, const Operand& a, const Operand& b, const Tensor& out,
                      int dim, const RowRange& range, bool only_asks, bool accumulate = false) {
  if (a.cols == 0) return absl::UnimplementedError("an empty sum has no rows of its own");
  const absl::Span<const int64_t> shape = out.shape();
  const int64_t inner = NumElements(shape.subspan(dim + 1).first(shape.size() - dim - 2));
  const int64_t outer = NumElements(shape.first(dim));
  GemmProblem gemm = ProblemOf(a, b, out, accumulate);
  gemm.whole_rows = a.rows;
  gemm.m = range.size() * inner;
  gemm.only_asks = only_asks;
  for (int64_t i = 0; i < outer && out.numel() > 0; ++i) {
    gemm.first_row = (i * shape[dim] + range.begin) * inner;
    gemm.a.data = static_cast<char*>(a.matrix.data) +
                  gemm.first_row * a.matrix.row_stride * SizeOf(gemm.dtype);
    gemm.c.data = static_cast<char*>(out.raw()) + gemm.first_row * b.cols * SizeOf(gemm.out_dtype);
    DT_RETURN_IF_ERROR(device.Gemm(gemm));
  }
  return absl::OkStatus();
}

// The same for a tensor b whose strides GemmProblem accepts without a copy.
absl::Status TensorRows(Device& device, const Tensor& a, const Tensor& b, bool transposed,
                        const Tensor& out, int dim, const RowRange& range, bool only_asks,
                        bool accumulate = false) {
  DT_RETURN_IF_ERROR(CheckRowMajor(a));
  Operand second{.rows = b.shape()[0], .cols = b.shape()[1]};
  if (!SetStrides(b, second)) return absl::UnimplementedError("a product copies its operand");
  second.matrix.data = b.raw();
  DT_ASSIGN_OR_RETURN(const Operand first, AsMatrix(device, a));
  return GemmRows(device, first, transposed ? second.Transposed() : second, out, dim, range,
                  only_asks, accumulate);
}

// Refuses operands with fewer than 2 dimensions, such as "[2] f32 ...".
absl::Status MatMulCheck(Specs operands, AttrsView) {
  for (const Spec* operand : operands) {
    if (operand->ndim() >= 2) continue;
    return InvalidArgument({"MatMul: operands must have 2 dimensions or more (",
                            SpecsText(operands),
                            "); Reshape a vector to [1, k] on the left, [k, 1] on the right"});
  }
  return absl::OkStatus();
}

absl::Status MatMulForward(const OpCall& call) {
  if (call.results[0].ndim() > 2) {
    return BatchedProduct(call.device(), call.operands[0], call.operands[1], call.results[0]);
  }
  DT_ASSIGN_OR_RETURN(const Operand a, AsMatrix(call.device(), call.operands[0]));
  DT_ASSIGN_OR_RETURN(const Operand b, AsMatrix(call.device(), call.operands[1]));
  return Gemm(call.device(), a, b, call.results[0]);
}

// The gradient of an operand that was broadcast is a sum over the batch.
absl::Status BatchedBackward(const GradCall& call) {
  const auto transposed = [](const Tensor& x) { return x.Transpose(x.ndim() - 2, x.ndim() - 1); };
  Device& device = call.device();
  const Tensor& dc = call.result_gradients[0];
  if (call.wants(0)) {
    DT_RETURN_IF_ERROR(BatchedProduct(device, dc, transposed(call.operands[1]), call.gradients[0]));
  }
  if (!call.wants(1)) return absl::OkStatus();
  return BatchedProduct(device, transposed(call.operands[0]), dc, call.gradients[1]);
}

// c = a b: da = dc b^T, db = a^T dc.
absl::Status MatMulBackward(const GradCall& call) {
  if (call.result_gradients[0].ndim() > 2) return BatchedBackward(call);
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

absl::Status MatMulRows(const OpCall& call, int dim, const RowRange& rows, bool only_asks) {
  return TensorRows(call.device(), call.operands[0], call.operands[1], false, call.results[0], dim,
                    rows, only_asks);
}

absl::Status MatMulGradientRows(const GradCall& call, int dim, const RowRange& rows,
                                bool only_asks) {
  return TensorRows(call.device(), call.result_gradients[0], call.operands[1], true,
                    call.gradients[0], dim, rows, only_asks);
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

absl::Status LinearRows(const OpCall& call, int dim, const RowRange& rows, bool only_asks) {
  return TensorRows(call.device(), call.operands[0], call.operands[1], true, call.results[0], dim,
                    rows, only_asks);
}

absl::Status LinearGradientRows(const GradCall& call, int dim, const RowRange& rows,
                                bool only_asks) {
  return TensorRows(call.device(), call.result_gradients[0], call.operands[1], false,
                    call.gradients[0], dim, rows, only_asks);
}

absl::Status BiasCheck(Specs operands, AttrsView) {
  const Dims &w = operands[1]->shape, &bias = operands[2]->shape;
  if (w.size() != 2 || (bias.size() == 1 && bias[0] == w[0])) return absl::OkStatus();
  return InvalidArgument({"Linear: a bias has one number for each row of the weight (",
                          SpecsText(operands), "); Reshape it to [", absl::StrCat(w[0]),
                          "], or Add what broadcasts otherwise"});
}

// Copies the bias into the result first; the product is then added to it, so the bias needs no
// extra pass.
absl::Status LinearBiasForward(const OpCall& call) {
  Device& device = call.device();
  const Tensor& y = call.results[0];
  DT_RETURN_IF_ERROR(kernels::Copy(device, call.operands[2].BroadcastTo(y.shape()), y));
  DT_ASSIGN_OR_RETURN(const Operand x, AsMatrix(device, call.operands[0]));
  DT_ASSIGN_OR_RETURN(const Operand w, AsMatrix(device, call.operands[1]));
  return Gemm(device, x, w.Transposed(), y, /*accumulate=*/true);
}

absl::Status LinearBiasRows(const OpCall& call, int dim, const RowRange& rows, bool only_asks) {
  Device& device = call.device();
  if (!only_asks) {
    const Tensor part = call.results[0].Narrow(dim, rows.begin, rows.size());
    DT_RETURN_IF_ERROR(kernels::Copy(device, call.operands[2].BroadcastTo(part.shape()), part));
  }
  return TensorRows(device, call.operands[0], call.operands[1], true, call.results[0], dim, rows,
                    only_asks, /*accumulate=*/true);
}

absl::Status LinearBiasBackward(const GradCall& call) {
  DT_RETURN_IF_ERROR(LinearBackward(call));
  if (!call.wants(2)) return absl::OkStatus();
  return SumToShape(call.device(), call.result_gradients[0], call.gradients[2]);
}

const OpDef kMatMulOp = {
    .name = "MatMul",
    .rule = "... m k, ... k n -> ... m n",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Floats(),
    .check = MatMulCheck,
    .every_device = {MatMulForward, MatMulBackward},
    .saved_operands = 0b11,
    .separate_gradients = {OpDef::kAlone | 0b10, OpDef::kAlone | 0b01},
    .rows = {HasRows, MatMulRows, MatMulGradientRows},
};

const OpDef kLinearOp = {
    .name = "Linear",
    .rule = "... k, n k -> ... n",
    .linearity = RuleLinearity::kMulti,
    .types = TypeSet::Floats(),
    .every_device = {LinearForward, LinearBackward},
    .saved_operands = 0b11,
    .separate_gradients = {OpDef::kAlone | 0b10, OpDef::kAlone | 0b01},
    .rows = {HasRows, LinearRows, LinearGradientRows},
};

// With a bias, which must be added only once: so k must not be sharded. If k is sharded, the
// product is Partial, and the bias is added to its sum (see Linear below).
const OpDef kLinearBiasOp = {
    .name = "Linear",
    .rule = "... k!, n k!, n -> ... n",
    .types = TypeSet::Floats(),
    .check = BiasCheck,
    .every_device = {LinearBiasForward, LinearBiasBackward},
    .saved_operands = 0b11,
    .separate_gradients = {OpDef::kAlone | 0b10, OpDef::kAlone | 0b01, OpDef::kAlone},
    .rows = {HasRows, LinearBiasRows, LinearGradientRows},
};

bool AreDefined(std::initializer_list<const TensorOr*> operands) {
  const auto is_defined = [](const TensorOr* operand) {
    return operand->ok() && (*operand)->defined();
  };
  return std::all_of(operands.begin(), operands.end(), is_defined);
}

}  // namespace

absl::Span<const OpDef* const> MatMulOps() {
  static constexpr const OpDef* kOps[] = {&kMatMulOp, &kLinearOp, &kLinearBiasOp};
  return kOps;
}

}  // namespace internal

TensorOr MatMul(const TensorOr& a, const TensorOr& b) {
  return Dispatch(internal::kMatMulOp, {&a, &b});
}

TensorOr Linear(const TensorOr& x, const TensorOr& weight) {
  return Dispatch(internal::kLinearOp, {&x, &weight});
}

absl::StatusOr<bool> LinearIsPartial(const TensorOr& x, const TensorOr& weight) {
  const bool comparable =
      internal::AreDefined({&x, &weight}) && &x->context() == &weight->context();
  if (!comparable) return Linear(x, weight).status();
  DT_ASSIGN_OR_RETURN(const DecisionPtr product, Decide(internal::kLinearOp, {*x, *weight}));
  return product->results[0]->layout.is_partial();
}

TensorOr Linear(const TensorOr& x, const TensorOr& weight, const TensorOr& bias) {
  using namespace internal;  // NOLINT
  const bool comparable = AreDefined({&x, &weight, &bias}) && &x->context() == &weight->context() &&
                          &x->context() == &bias->context();
  if (comparable) {
    const Spec* const specs[] = {&x->spec(), &weight->spec(), &bias->spec()};
    DT_ASSIGN_OR_RETURN(const bool partial, LinearIsPartial(x, weight));
    if (partial) {
      DT_RETURN_IF_ERROR(BiasCheck(specs, {}));
      return Add(Linear(x, weight), bias);
    }
  }
  return Dispatch(kLinearBiasOp, {&x, &weight, &bias});
}

}  // namespace dtensor
