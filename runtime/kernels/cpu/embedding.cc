#include <algorithm>
#include <cstring>
#include <vector>

#include "dtensor/runtime/device/index_error.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/elementwise_simd.h"
#include "dtensor/runtime/kernels/cpu/ids.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// Copies row `r`, or zeros for r < 0, and returns the end of the copy.
std::byte* CopyRow(const TableRows& t, int64_t r, std::byte* dst) {
  if (t.n == 0) return dst;
  if (r < 0) {
    std::memset(dst, 0, t.n * t.size);
  } else if (t.stride == 1 || t.n == 1) {
    std::memcpy(dst, t.data + r * t.row_stride * t.size, t.n * t.size);
  } else {
    GatherStrided(dst, t.data + r * t.row_stride * t.size, t.n, t.stride, t.size);
  }
  return dst + t.n * t.size;
}

// For each row of the table, the tokens that use it, in ascending order: those of row r are
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

// Computes dtable row by row: the sums of narrow floats stay in f32 until they are complete.
template <typename T>
void SumByRow(const TokensByRow& tokens, DType dtype, const T* dy, int64_t d, T* dtable) {
  std::vector<Compute<T>> sum(d);
  const int64_t rows = static_cast<int64_t>(tokens.begin.size()) - 1;
  for (int64_t r = 0; r < rows; ++r) {
    if (tokens.begin[r] == tokens.begin[r + 1]) {  // most rows of a large table
      std::memset(dtable + r * d, 0, d * sizeof(T));
      continue;
    }
    std::fill(sum.begin(), sum.end(), Compute<T>{0});
    for (int64_t i = tokens.begin[r]; i < tokens.begin[r + 1]; ++i) {
      simd::ReduceInto(ReduceOp::kSum, dtype, dy + tokens.order[i] * d, sum.data(), d);
    }
    simd::Convert(DType::kF32, sum.data(), dtype, dtable + r * d, d, /*stream=*/false);
  }
}

// For f32 and f64: sums in dtable itself, and reads dy once from its beginning to its end.
template <typename T>
void SumInPlace(const Ids& ids, int64_t tokens, const IndexLookup& lookup, DType dtype, const T* dy,
                int64_t rows, int64_t d, T* dtable) {
  std::fill_n(dtable, rows * d, T{0});
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t r = lookup.Position(ids[t]);
    if (r >= 0) simd::ReduceInto(ReduceOp::kSum, dtype, dy + t * d, dtable + r * d, d);
  }
}

absl::Status CopyRows(const EmbeddingArgs& a) {
  std::vector<std::byte> scratch;
  const Ids id(Packed(a.ids, scratch), a.id_dtype);
  std::byte* dst = static_cast<std::byte*>(a.y);
  for (int64_t t = 0; t < a.tokens; ++t) {
    if (id[t] < 0 || id[t] >= a.num_rows) {
      return ToStatus(IndexError{"id", id[t], t, a.num_rows});
    }
    dst = CopyRow(a.table, a.rows.Position(id[t]), dst);
  }
  return absl::OkStatus();
}

void SumRows(const EmbeddingGradArgs& a) {
  if (a.d == 0 || a.num_rows == 0) return;
  std::vector<std::byte> id_scratch, dy_scratch;
  const Ids id(Packed(a.ids, id_scratch), a.id_dtype);
  const void* grads = Packed(a.dy, dy_scratch);
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    const T* dy = static_cast<const T*>(grads);
    T* dtable = static_cast<T*>(a.dtable);
    if constexpr (kIsHalf<T>) {
      SumByRow(TokensByRow(id, a.tokens, a.rows, a.num_rows), a.dtype, dy, a.d, dtable);
    } else {
      SumInPlace(id, a.tokens, a.rows, a.dtype, dy, a.num_rows, a.d, dtable);
    }
  });
}

}  // namespace

absl::Status Embedding(Device& device, const char* kernel, const EmbeddingArgs& args) {
  return Launch(device, kernel, args, CopyRows);
}

absl::Status EmbeddingGrad(Device& device, const char* kernel, const EmbeddingGradArgs& args) {
  return Launch(device, kernel, args, SumRows);
}

}  // namespace dtensor::kernels::cpu
