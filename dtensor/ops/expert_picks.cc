#include "dtensor/ops/expert_picks.h"

#include "dtensor/ops/batched_product.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/reduce.h"

namespace dtensor::internal {
namespace {

Tensor MatrixOf(const Tensor& matrices, int64_t expert) {
  return matrices.View({matrices.size(1), matrices.size(2)},
                       {matrices.strides()[1], matrices.strides()[2]},
                       expert * matrices.strides()[0]);
}

IndexSet AllRows(const Tensor& x) { return IndexSet::Interval(0, x.size(0)); }

}  // namespace

absl::StatusOr<Tensor> Picks::Rows(const Tensor& like, int64_t n) const {
  return Tensor::Empty(device_, like.dtype(), {routing_.picks(), n});
}

absl::Status Picks::Multiply(const Tensor& rows, const Tensor& matrices, bool transposed,
                             const Tensor& out, bool adds) const {
  for (int64_t e = 0; e < routing_.experts(); ++e) {
    const Tensor matrix = MatrixOf(matrices, e);
    DT_RETURN_IF_ERROR(MatrixProduct(device_, RowsOf(rows, e),
                                     transposed ? matrix.Transpose(0, 1) : matrix, RowsOf(out, e),
                                     adds));
  }
  return absl::OkStatus();
}

absl::Status Picks::Contract(const Tensor& a, const Tensor& b, const Tensor& matrices) const {
  for (int64_t e = 0; e < routing_.experts(); ++e) {
    DT_RETURN_IF_ERROR(
        MatrixProduct(device_, RowsOf(a, e).Transpose(0, 1), RowsOf(b, e), MatrixOf(matrices, e)));
  }
  return absl::OkStatus();
}

absl::Status Picks::AddBias(const Tensor& biases, const Tensor& rows) const {
  for (int64_t e = 0; e < routing_.experts(); ++e) {
    const Tensor sums = RowsOf(rows, e);
    DT_RETURN_IF_ERROR(kernels::Binary(device_, kernels::BinaryOp::kAdd, sums,
                                       biases.Narrow(0, e, 1).BroadcastTo(sums.shape()), sums));
  }
  return absl::OkStatus();
}

absl::Status Picks::SumRows(const Tensor& rows, const Tensor& biases) const {
  for (int64_t e = 0; e < routing_.experts(); ++e) {
    DT_RETURN_IF_ERROR(
        kernels::Reduce(device_, ReduceOp::kSum, RowsOf(rows, e), {0}, biases.Narrow(0, e, 1)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Picks::Gather(const Tensor& x, const Tensor& at) const {
  DT_ASSIGN_OR_RETURN(Tensor out, Rows(x, x.size(1)));
  DT_RETURN_IF_ERROR(kernels::Embedding(device_, at, x, AllRows(x), x.size(0), out));
  return out;
}

absl::Status Picks::Scatter(const Tensor& rows, const Tensor& at, const Tensor& x) const {
  return kernels::EmbeddingGrad(device_, at, rows, AllRows(x), x);
}

Tensor Picks::RowsOf(const Tensor& rows, int64_t expert) const {
  const int64_t begin = routing_.begin[expert];
  return rows.Narrow(0, begin, routing_.begin[expert + 1] - begin);
}

}  // namespace dtensor::internal
