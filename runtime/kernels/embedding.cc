#include <cstring>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/index_lookup.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

void CheckIds(const Tensor& ids, const Tensor& y) {
  DT_CHECK(ids.dtype() == DType::kI32 || ids.dtype() == DType::kI64);
  DT_CHECK(y.ndim() == ids.ndim() + 1);
  DT_CHECK(ids.shape() == Dims(y.shape().begin(), y.shape().end() - 1));
}

void CheckTable(const Tensor& table, const IndexSet& rows, const Tensor& y) {
  DT_CHECK(table.ndim() == 2 && table.size(0) == rows.size() && table.size(1) == y.shape().back());
  DT_CHECK(table.dtype() == y.dtype());
}

// The table's rows as a kernel may hold them.
struct TableRows {
  explicit TableRows(const Tensor& t)
      : data(static_cast<const std::byte*>(t.raw())),
        size(SizeOf(t.dtype())),
        n(t.size(1)),
        row_stride(t.strides()[0]),
        stride(t.strides()[1]) {}

  // Copies row `r`, or zeros for r < 0, and returns the end of the copy.
  std::byte* CopyRow(int64_t r, std::byte* dst) const {
    if (n == 0) return dst;
    if (r < 0) {
      std::memset(dst, 0, n * size);
    } else if (stride == 1 || n == 1) {
      std::memcpy(dst, data + r * row_stride * size, n * size);
    } else {
      GatherStrided(dst, data + r * row_stride * size, n, stride, size);
    }
    return dst + n * size;
  }

  const std::byte* data;
  int64_t size, n, row_stride, stride;
};

// For each row of the table the tokens that want it, ascending: the tokens of row r are
// order[begin[r]] to order[begin[r + 1] - 1]. A counting sort.
struct TokensByRow {
  TokensByRow(const Ids& ids, int64_t tokens, const IndexLookup& lookup, int64_t rows)
      : begin(rows + 1, 0) {
    std::vector<int64_t> position(tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      position[t] = lookup.Position(ids[t]);
      if (position[t] >= 0) ++begin[position[t] + 1];
    }
    for (int64_t r = 0; r < rows; ++r) begin[r + 1] += begin[r];
    order.resize(begin[rows]);
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      if (position[t] >= 0) order[next[position[t]]++] = t;
    }
  }

  std::vector<int64_t> begin, order;
};

// Sums of narrow floats stay in f32 until they are complete: row by row of dtable.
template <typename T>
void SumByRow(const TokensByRow& tokens, DType dtype, const T* dy, int64_t d, T* dtable) {
  std::vector<Compute<T>> sum(d);
  const int64_t rows = static_cast<int64_t>(tokens.begin.size()) - 1;
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(sum.begin(), sum.end(), Compute<T>{0});
    for (int64_t i = tokens.begin[r]; i < tokens.begin[r + 1]; ++i) {
      simd::ReduceInto(ReduceOp::kSum, dtype, dy + tokens.order[i] * d, sum.data(), d);
    }
    RoundAll(sum.data(), dtable + r * d, d);
  }
}

// f32 and f64 add up in dtable itself, reading dy once from its beginning to its end.
template <typename T>
void SumInPlace(const Ids& ids, int64_t tokens, const IndexLookup& lookup, DType dtype, const T* dy,
                int64_t rows, int64_t d, T* dtable) {
  std::fill_n(dtable, rows * d, T{0});
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t r = lookup.Position(ids[t]);
    if (r >= 0) simd::ReduceInto(ReduceOp::kSum, dtype, dy + t * d, dtable + r * d, d);
  }
}

}  // namespace

absl::Status Embedding(Device& device, const Tensor& ids, const Tensor& table, const IndexSet& rows,
                       int64_t num_rows, const Tensor& y) {
  CheckIds(ids, y);
  CheckTable(table, rows, y);
  DT_CHECK(y.is_contiguous());
  const Packed packed(ids);
  const TableRows source(table);
  return device.Launch("Embedding",
                       [=, lookup = IndexLookup(rows), dtype = ids.dtype(), tokens = ids.numel(),
                        out = y.raw()]() -> absl::Status {
                         std::vector<std::byte> scratch;
                         const Ids id(packed.Get(scratch), dtype);
                         std::byte* dst = static_cast<std::byte*>(out);
                         for (int64_t t = 0; t < tokens; ++t) {
                           if (id[t] < 0 || id[t] >= num_rows) {
                             return IdOutOfRange("Embedding", "id", id[t], t, num_rows);
                           }
                           dst = source.CopyRow(lookup.Position(id[t]), dst);
                         }
                         return absl::OkStatus();
                       });
}

absl::Status EmbeddingGrad(Device& device, const Tensor& ids, const Tensor& dy,
                           const IndexSet& rows, const Tensor& dtable) {
  CheckIds(ids, dy);
  CheckTable(dtable, rows, dy);
  DT_CHECK(dtable.is_contiguous() && IsFloat(dy.dtype()));
  const Packed packed_ids(ids), packed_dy(dy);
  return device.Launch(
      "EmbeddingGrad",
      [=, lookup = IndexLookup(rows), id_dtype = ids.dtype(), dtype = dy.dtype(),
       tokens = ids.numel(), d = dtable.size(1), num_rows = dtable.size(0), out = dtable.raw()] {
        if (d == 0 || num_rows == 0) return;
        std::vector<std::byte> id_scratch, dy_scratch;
        const Ids id(packed_ids.Get(id_scratch), id_dtype);
        const void* grads = packed_dy.Get(dy_scratch);
        VisitFloat(dtype, [&](auto t) {
          using T = decltype(t);
          const T* dy = static_cast<const T*>(grads);
          T* dtable = static_cast<T*>(out);
          if constexpr (kIsHalf<T>) {
            SumByRow(TokensByRow(id, tokens, lookup, num_rows), dtype, dy, d, dtable);
          } else {
            SumInPlace(id, tokens, lookup, dtype, dy, num_rows, d, dtable);
          }
        });
      });
}

}  // namespace dtensor::kernels
