#include "dtensor/runtime/device/host/host_gemm.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The strides of a matrix of 16-bit elements after it is widened.
GemmMatrix WidenedStrides(const GemmMatrix& x, int64_t rows, int64_t columns) {
  const bool by_rows = x.col_stride <= x.row_stride || rows == 1;
  return {nullptr, by_rows ? columns : 1, by_rows ? 1 : rows, 0};
}

// x as f32 without gaps, keeping x's order of rows and columns.
template <typename T>
GemmMatrix Widen(const GemmMatrix& x, int64_t index, int64_t rows, int64_t columns, float* out) {
  const T* in = static_cast<const T*>(x.data) + index * x.batch_stride;
  const GemmMatrix wide = WidenedStrides(x, rows, columns);
  const bool by_rows = wide.col_stride == 1;
  const int64_t outer = by_rows ? rows : columns, inner = by_rows ? columns : rows;
  const int64_t outer_stride = by_rows ? x.row_stride : x.col_stride;
  const int64_t inner_stride = by_rows ? x.col_stride : x.row_stride;
  for (int64_t i = 0; i < outer; ++i) {
    const T* line = in + i * outer_stride;
    for (int64_t j = 0; j < inner; ++j) {
      out[i * inner + j] = static_cast<float>(line[j * inner_stride]);
    }
  }
  return {out, by_rows ? columns : 1, by_rows ? 1 : rows, 0};
}

template <typename T>
void Narrow(const float* in, int64_t rows, int64_t columns, bool add, T* c, int64_t row_stride) {
  for (int64_t i = 0; i < rows; ++i, in += columns, c += row_stride) {
    for (int64_t j = 0; j < columns; ++j) {
      c[j] = T(add ? static_cast<float>(c[j]) + in[j] : in[j]);
    }
  }
}

GemmProblem Widened(const GemmProblem& p) {
  GemmProblem wide = {.m = p.m, .n = p.n, .k = p.k};
  wide.whole_rows = p.whole_rows;
  wide.a = WidenedStrides(p.a, p.m, p.k);
  wide.b = WidenedStrides(p.b, p.k, p.n);
  const bool in_place = p.out_dtype == DType::kF32;
  wide.accumulate = in_place && p.accumulate;
  wide.c = in_place ? p.c : GemmMatrix{nullptr, p.n, 1, 0};
  return wide;
}

}  // namespace

absl::Status HostGemm::Run(const GemmProblem& p) {
  DT_ASSIGN_OR_RETURN(const bool done, one_dnn_.Run(p));
  if (done) return absl::OkStatus();
  if (p.dtype == DType::kBF16) return RunWidened<BFloat16>(p);
  if (p.dtype == DType::kF16) return RunWidened<Float16>(p);
  return simple_.Run(p);
}

absl::Status HostGemm::CheckRows(const GemmProblem& part) {
  const bool by_one_dnn = IsFloat(part.dtype) && part.dtype != DType::kF64;
  if (part.whole_rows == 0 || !by_one_dnn) return absl::OkStatus();
  GemmProblem whole = part;
  whole.m = part.whole_rows;
  using Code = OneDnnGemm::Code;
  DT_ASSIGN_OR_RETURN(const Code code, one_dnn_.CodeOf(part));
  DT_ASSIGN_OR_RETURN(const Code code_of_whole, one_dnn_.CodeOf(whole));
  // Column-major operands are copied in blocks that depend on the number of rows.
  if (part.a.col_stride == 1 && code == code_of_whole) {
    if (code == Code::kByRows) return absl::OkStatus();
    if (code == Code::kNone && SizeOf(part.dtype) == 2) return CheckRows(Widened(part));
    if (code == Code::kNone) return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("oneDNN's code for this product gives ", part.m,
                                               " of its rows other bits than all ", part.whole_rows,
                                               "; make all at once"));
}

template <typename T>
absl::Status HostGemm::RunWidened(const GemmProblem& p) {
  float* a = static_cast<float*>(a_.Reserve(p.m * p.k * sizeof(float)));
  float* b = static_cast<float*>(b_.Reserve(p.k * p.n * sizeof(float)));
  float* c = static_cast<float*>(c_.Reserve(p.m * p.n * sizeof(float)));
  if (a == nullptr || b == nullptr || c == nullptr) {
    return absl::ResourceExhaustedError("the system refused the memory to widen a product to f32");
  }
  GemmProblem wide = {.m = p.m, .n = p.n, .k = p.k};
  for (int64_t i = 0; i < p.batch; ++i) {
    if (i == 0 || p.a.batch_stride != 0) wide.a = Widen<T>(p.a, i, p.m, p.k, a);
    if (i == 0 || p.b.batch_stride != 0) wide.b = Widen<T>(p.b, i, p.k, p.n, b);
    const int64_t offset = i * p.c.batch_stride;
    if (p.out_dtype == DType::kF32) {
      wide.c = {static_cast<float*>(p.c.data) + offset, p.c.row_stride, 1, 0};
      wide.accumulate = p.accumulate;
      DT_RETURN_IF_ERROR(Run(wide));
    } else {
      wide.c = {c, p.n, 1, 0};
      DT_RETURN_IF_ERROR(Run(wide));
      Narrow(c, p.m, p.n, p.accumulate, static_cast<T*>(p.c.data) + offset, p.c.row_stride);
    }
  }
  return absl::OkStatus();
}

}  // namespace dtensor
