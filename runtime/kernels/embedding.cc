#include "dtensor/runtime/kernels/cuda/embedding.h"

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/indexed_args.h"
#include "dtensor/runtime/kernels/arguments/operand_bytes.h"
#include "dtensor/runtime/kernels/by_device.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

// Counts as if each token's row were on this rank.
KernelWork WorkOf(const EmbeddingArgs& args) {
  return {.bytes = BytesOf(args.ids) +
                   2.0 * static_cast<double>(args.tokens * args.table.n * args.table.size)};
}

KernelWork WorkOf(const EmbeddingGradArgs& args) {
  return {.bytes = BytesOf(args.ids) + BytesOf(args.dy) +
                   Bytes(static_cast<double>(args.num_rows * args.d), args.dtype)};
}

constexpr ByDevice<EmbeddingArgs> kEmbedding = {.name = "Embedding",
                                                .host = cpu::Embedding,
                                                .cuda = DT_ON_CUDA(cuda::Embedding),
                                                .work = WorkOf};
constexpr ByDevice<EmbeddingGradArgs> kEmbeddingGrad = {.name = "EmbeddingGrad",
                                                        .host = cpu::EmbeddingGrad,
                                                        .cuda = DT_ON_CUDA(cuda::EmbeddingGrad),
                                                        .work = WorkOf};

void CheckIds(const Tensor& ids, const Tensor& y) {
  DT_CHECK(ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64);
  DT_CHECK(y.ndim() == ids.ndim() + 1);
  DT_CHECK(ids.shape() == Dims(y.shape().begin(), y.shape().end() - 1));
}

void CheckTable(const Tensor& table, const IndexSet& rows, const Tensor& y) {
  DT_CHECK(table.ndim() == 2 && table.size(0) == rows.size() && table.size(1) == y.shape().back());
  DT_CHECK(table.dtype() == y.dtype());
}

TableRows RowsOf(const Tensor& table) {
  return {static_cast<const std::byte*>(table.raw()), SizeOf(table.dtype()), table.size(1),
          table.strides()[0], table.strides()[1]};
}

}  // namespace

absl::Status Embedding(Device& device, const Tensor& ids, const Tensor& table, const IndexSet& rows,
                       int64_t num_rows, const Tensor& y) {
  CheckIds(ids, y);
  CheckTable(table, rows, y);
  DT_CHECK(y.is_contiguous());
  return kEmbedding.Run(device, {table.dtype(), ids.dtype()},
                        {.id_dtype = ids.dtype(),
                         .ids = StridedInput(ids),
                         .tokens = ids.numel(),
                         .table = RowsOf(table),
                         .rows = IndexLookup(rows),
                         .num_rows = num_rows,
                         .y = y.raw()});
}

absl::Status EmbeddingGrad(Device& device, const Tensor& ids, const Tensor& dy,
                           const IndexSet& rows, const Tensor& dtable) {
  CheckIds(ids, dy);
  CheckTable(dtable, rows, dy);
  DT_CHECK(dtable.is_contiguous() && IsFloat(dy.dtype()));
  return kEmbeddingGrad.Run(device, {dy.dtype(), ids.dtype()},
                            {.dtype = dy.dtype(),
                             .id_dtype = ids.dtype(),
                             .ids = StridedInput(ids),
                             .dy = StridedInput(dy),
                             .tokens = ids.numel(),
                             .rows = IndexLookup(rows),
                             .num_rows = dtable.size(0),
                             .d = dtable.size(1),
                             .dtable = dtable.raw()});
}

}  // namespace dtensor::kernels
