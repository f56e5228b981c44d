// Makes as few calls of Device::Gemm as the strides allow. If the strides continue, a batch
// dimension becomes additional rows of A (if all share one B), or additional terms of the sum (if
// products are added up). The largest of the remaining batch dimensions becomes GemmProblem's own
// batch. Matrices that are neither row-major nor column-major are copied first, and none becomes
// so: not every device's Gemm takes them.
#include "dtensor/ops/batched_product.h"

#include <algorithm>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/runtime/device/gemm_operand.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor::internal {
namespace {

// A dimension of the batch: its size, and its stride in each tensor, in elements. A stride is 0 if
// the tensor is broadcast along it, or, in `c`, if products are summed.
struct BatchDim {
  int64_t size = 0, a = 0, b = 0, c = 0;
  bool summed() const { return c == 0; }
};
using Batch = absl::InlinedVector<BatchDim, 4>;

// The size and stride of a batch dimension of x, counted from the matrix to the left.
struct Dim {
  int64_t size = 1, stride = 0;
};
Dim DimOf(const Tensor& x, int from_right) {
  const int d = x.ndim() - 3 - from_right;
  if (d < 0 || x.size(d) == 1) return {};
  return {x.size(d), x.strides()[d]};
}

// The batch dimensions, outermost first, without those of size 1.
Batch BatchOf(const Tensor& a, const Tensor& b, const Tensor& out) {
  Batch batch;
  for (int i = std::max({a.ndim(), b.ndim(), out.ndim()}) - 3; i >= 0; --i) {
    const Dim of_a = DimOf(a, i), of_b = DimOf(b, i), of_c = DimOf(out, i);
    const int64_t size = of_a.size != 1 ? of_a.size : of_b.size;
    DT_CHECK((of_b.size == 1 || of_b.size == size) && (of_c.size == 1 || of_c.size == size));
    if (size != 1) batch.push_back({size, of_a.stride, of_b.stride, of_c.stride});
  }
  return batch;
}

// Merges neighbouring dimensions whose strides continue in all three tensors.
void Merge(Batch& batch) {
  for (size_t i = batch.size(); i-- > 1;) {
    BatchDim& outer = batch[i - 1];
    const BatchDim& inner = batch[i];
    if (outer.a != inner.a * inner.size || outer.b != inner.b * inner.size ||
        outer.c != inner.c * inner.size) {
      continue;
    }
    outer = {outer.size * inner.size, inner.a, inner.b, inner.c};
    batch.erase(batch.begin() + i);
  }
}

// Whether every device's Gemm takes these matrices.
bool HasStrides(const GemmProblem& gemm) {
  return StridesOf(gemm.a, gemm.m, gemm.k, 1) && StridesOf(gemm.b, gemm.k, gemm.n, 1) &&
         StridesOf(gemm.c, gemm.m, gemm.n, 1);
}

// The product with `dim` among its rows, or in its sum; nothing if that would be another product.
std::optional<GemmProblem> Folded(const BatchDim& dim, GemmProblem gemm) {
  if (dim.summed()) {
    if (dim.a != gemm.k * gemm.a.col_stride || dim.b != gemm.k * gemm.b.row_stride) return {};
    gemm.k *= dim.size;
    return gemm;
  }
  if (dim.b != 0) return {};
  if (gemm.m == 1) {
    gemm.a.row_stride = dim.a;
    gemm.c.row_stride = dim.c;
  } else if (dim.a != gemm.m * gemm.a.row_stride || dim.c != gemm.m * gemm.c.row_stride) {
    return {};
  }
  gemm.m *= dim.size;
  return gemm;
}

// Takes `dim` into the product, if that computes the same.
bool Fold(const BatchDim& dim, GemmProblem& gemm) {
  const std::optional<GemmProblem> folded = Folded(dim, gemm);
  if (!folded || !HasStrides(*folded)) return false;
  gemm = *folded;
  return true;
}

// Gives the product the largest dimension that is not summed, and removes it from `batch`.
void TakeBatch(Batch& batch, GemmProblem& gemm) {
  auto largest = batch.end();
  for (auto dim = batch.begin(); dim != batch.end(); ++dim) {
    if (dim->summed()) continue;
    if (largest == batch.end() || dim->size > largest->size) largest = dim;
  }
  if (largest == batch.end()) return;
  gemm.batch = largest->size;
  gemm.a.batch_stride = largest->a;
  gemm.b.batch_stride = largest->b;
  gemm.c.batch_stride = largest->c;
  batch.erase(largest);
}

void* Advanced(void* data, int64_t elements, DType dtype) {
  return static_cast<char*>(data) + elements * SizeOf(dtype);
}

// Runs one product for each index of `batch`. The first one into a part of C sets it; the others
// are added.
absl::Status RunAll(Device& device, absl::Span<const BatchDim> batch, const GemmProblem& gemm) {
  if (batch.empty()) return device.Gemm(gemm);
  const BatchDim& dim = batch[0];
  for (int64_t i = 0; i < dim.size; ++i) {
    GemmProblem one = gemm;
    one.a.data = Advanced(gemm.a.data, i * dim.a, gemm.dtype);
    one.b.data = Advanced(gemm.b.data, i * dim.b, gemm.dtype);
    one.c.data = Advanced(gemm.c.data, i * dim.c, gemm.out_dtype);
    one.accumulate = gemm.accumulate || (dim.summed() && i > 0);
    DT_RETURN_IF_ERROR(RunAll(device, batch.subspan(1), one));
  }
  return absl::OkStatus();
}

GemmMatrix MatrixOf(const Tensor& x) {
  const Dims& strides = x.strides();
  return {x.raw(), strides[x.ndim() - 2], strides[x.ndim() - 1], 0};
}

// x [..., rows, columns] with matrices that every device's Gemm takes. Of a batch that x is
// broadcast along, one is copied.
absl::StatusOr<Tensor> WithMatrices(Device& device, const Tensor& x) {
  if (StridesOf(MatrixOf(x), x.size(x.ndim() - 2), x.size(x.ndim() - 1), 1)) return x;
  Tensor one = x;
  for (int d = 0; d < x.ndim() - 2; ++d) {
    if (x.strides()[d] == 0 && x.size(d) > 1) one = one.Narrow(d, 0, 1);
  }
  DT_ASSIGN_OR_RETURN(const Tensor copy, kernels::Contiguous(device, one));
  return copy.BroadcastTo(x.shape());
}

GemmProblem OneProduct(const Tensor& a, const Tensor& b, const Tensor& out) {
  GemmProblem gemm;
  gemm.dtype = a.dtype();
  gemm.out_dtype = out.dtype();
  gemm.m = a.size(a.ndim() - 2);
  gemm.k = a.size(a.ndim() - 1);
  gemm.n = b.size(b.ndim() - 1);
  gemm.a = MatrixOf(a);
  gemm.b = MatrixOf(b);
  gemm.c = MatrixOf(out);
  return gemm;
}

}  // namespace

absl::Status BatchedProduct(Device& device, const Tensor& any_a, const Tensor& any_b,
                            const Tensor& out) {
  if (out.numel() == 0) return absl::OkStatus();
  if (any_a.numel() == 0 || any_b.numel() == 0) return kernels::Fill(device, out, 0);  // empty sums
  DT_ASSIGN_OR_RETURN(const Tensor a, WithMatrices(device, any_a));
  DT_ASSIGN_OR_RETURN(const Tensor b, WithMatrices(device, any_b));
  Batch batch = BatchOf(a, b, out);
  Merge(batch);
  GemmProblem gemm = OneProduct(a, b, out);
  for (size_t i = batch.size(); i-- > 0;) {
    if (Fold(batch[i], gemm)) batch.erase(batch.begin() + i);
  }
  TakeBatch(batch, gemm);
  const bool adds_up =
      std::any_of(batch.begin(), batch.end(), [](const BatchDim& dim) { return dim.summed(); });
  if (!adds_up || SizeOf(out.dtype()) != 2) return RunAll(device, batch, gemm);
  DT_ASSIGN_OR_RETURN(const Tensor wide, Tensor::Empty(device, DType::kF32, out.shape()));
  gemm.out_dtype = DType::kF32;
  gemm.c.data = wide.raw();
  DT_RETURN_IF_ERROR(RunAll(device, batch, gemm));
  return kernels::Unary(device, kernels::UnaryOp::kCopy, wide, out);
}

absl::Status MatrixProduct(Device& device, const Tensor& any_a, const Tensor& any_b,
                           const Tensor& out, bool adds) {
  DT_CHECK(any_a.ndim() == 2 && any_b.ndim() == 2 && out.ndim() == 2);
  DT_CHECK(any_a.size(1) == any_b.size(0));
  if (out.numel() == 0) return absl::OkStatus();
  if (any_a.numel() == 0) return adds ? absl::OkStatus() : kernels::Fill(device, out, 0);
  DT_ASSIGN_OR_RETURN(const Tensor a, WithMatrices(device, any_a));
  DT_ASSIGN_OR_RETURN(const Tensor b, WithMatrices(device, any_b));
  GemmProblem gemm = OneProduct(a, b, out);
  gemm.accumulate = adds;
  return device.Gemm(gemm);
}

}  // namespace dtensor::internal
