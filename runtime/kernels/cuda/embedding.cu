#include "dtensor/runtime/kernels/cuda/embedding.h"

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/pack_words-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/token_order-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// The unit in which a table's rows are copied if they consist of whole pieces.
using Piece = Pack<uint64_t, 2>;

struct CopyRowsArgs {
  Ids ids;
  IndexCheck check;
  IndexRuns rows;
  int64_t tokens;
  TableRows table;
  void* y;
};

// A warp copies a token's row, or zeros if the table does not have it.
template <typename Unit>
__global__ void CopyRowsKernel(CopyRowsArgs a) {
  ForEachRow<kWarp>(a.tokens, [&](int64_t t, int lane) {
    const int64_t id = a.ids[t];
    const int64_t row = a.check.Passes(id, t) ? a.rows.PositionOf(id) : -1;
    const Unit* const from = reinterpret_cast<const Unit*>(a.table.data) + row * a.table.row_stride;
    Unit* const to = static_cast<Unit*>(a.y) + t * a.table.n;
    for (int64_t i = lane; i < a.table.n; i += kWarp) {
      to[i] = row < 0 ? Unit{} : from[i * a.table.stride];
    }
  });
}

bool IsInPieces(const TableRows& table, const void* y) {
  constexpr int64_t kBytes = sizeof(Piece);
  return (table.stride == 1 || table.n == 1) && table.n * table.size % kBytes == 0 &&
         table.row_stride * table.size % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(table.data) % kBytes == 0 &&
         reinterpret_cast<uintptr_t>(y) % kBytes == 0;
}

// The same, counted in pieces.
TableRows InPieces(const TableRows& t) {
  constexpr int64_t kBytes = sizeof(Piece);
  return {t.data, kBytes, t.n * t.size / kBytes, t.row_stride * t.size / kBytes, 1};
}

// Sums in ascending order of the tokens, as on the CPU.
struct SumRowsArgs {
  TokenOrder order;
  StridedInput dy;
  int64_t num_rows, d;
  void* dtable;
};

template <typename T, int V>
__device__ PackWords<T, V> LoadGrad(const SumRowsArgs& a, int64_t i) {
  if constexpr (V == 1) {
    return PackWords<T, V>::Of({{ElementOf<T>(a.dy, i)}});
  } else {
    return PackWords<T, V>::Load(reinterpret_cast<const T*>(a.dy.data) + i);
  }
}

template <typename T, int V>
__device__ void Add(const PackWords<T, V>& grads, Compute<T> (&sum)[V]) {
  const Pack<T, V> pack = grads.pack();
  for (int v = 0; v < V; ++v) sum[v] += Widen(pack.at[v]);
}

// Sums V columns over the tokens of a row, beginning with the i-th token of the order.
template <typename T, int V>
__device__ void SumRow(const SumRowsArgs& a, int64_t row, int64_t i, int64_t column,
                       Compute<T> (&sum)[V]) {
  // Reads so many tokens at a time, first their indices, then their gradients: half of all tokens
  // may use one row, such as that of padding, and each wait is one for memory.
  constexpr int kAhead = 8;
  for (bool more = true; more; i += kAhead) {
    int64_t token[kAhead];
    PackWords<T, V> grads[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) token[k] = a.order.TokenOf(row, i + k);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (token[k] >= 0) grads[k] = LoadGrad<T, V>(a, token[k] * a.d + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (token[k] >= 0) Add<T, V>(grads[k], sum);
    }
    more = token[kAhead - 1] >= 0;
  }
}

template <typename T, int V>
__device__ void StoreRow(const SumRowsArgs& a, int64_t row, int64_t column,
                         const Compute<T> (&sum)[V]) {
  Pack<T, V> rounded;
  for (int v = 0; v < V; ++v) rounded.at[v] = Round<T>(sum[v]);
  PackWords<T, V>::Of(rounded).Store(static_cast<T*>(a.dtable) + row * a.d + column);
}

// Reads V columns of the first token of each of a few rows together: most rows have one token, or
// none. Stores the rows that have no more tokens, and returns whether there are others.
constexpr int kRowsOfThread = 4;
template <typename T, int V>
__device__ bool CopyFirstTokens(const SumRowsArgs& a, int64_t first, int64_t column) {
  RowTokens of_row[kRowsOfThread];
  PackWords<T, V> grads[kRowsOfThread] = {};
#pragma unroll
  for (int k = 0; k < kRowsOfThread; ++k) {
    of_row[k] = first + k < a.num_rows ? a.order.rows[first + k] : RowTokens{-1, 0};
  }
#pragma unroll
  for (int k = 0; k < kRowsOfThread; ++k) {
    if (of_row[k].first >= 0) grads[k] = LoadGrad<T, V>(a, of_row[k].first * a.d + column);
  }
  bool more = false;
#pragma unroll
  for (int k = 0; k < kRowsOfThread; ++k) {
    more = more || of_row[k].others > 0;
    if (of_row[k].others > 0 || first + k >= a.num_rows) continue;
    Compute<T> sum[V] = {};
    Add<T, V>(grads[k], sum);
    StoreRow<T, V>(a, first + k, column, sum);
  }
  return more;
}

// Each thread computes V columns of kRowsOfThread rows.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads, 3)
    SumRowsKernel(const __grid_constant__ SumRowsArgs a) {
  const int64_t packs = a.d / V, groups = (a.num_rows + kRowsOfThread - 1) / kRowsOfThread;
  ForEachPiece<int64_t>(groups * packs, [&](int64_t piece) {
    const int64_t group = Divide(piece, packs), first = group * kRowsOfThread;
    const int64_t column = (piece - group * packs) * V;
    if (!CopyFirstTokens<T, V>(a, first, column)) return;
    const int64_t end = Lesser(first + kRowsOfThread, a.num_rows);
#pragma unroll 1
    for (int64_t row = first; row < end; ++row) {
      const RowTokens tokens = a.order.rows[row];
      if (tokens.others == 0) continue;
      Compute<T> sum[V] = {};
      Add<T, V>(LoadGrad<T, V>(a, tokens.first * a.d + column), sum);
      SumRow<T, V>(a, row, tokens.others, column, sum);
      StoreRow<T, V>(a, row, column, sum);
    }
  });
}

template <typename T>
absl::Status SumRows(Device& device, const char* kernel, const SumRowsArgs& args) {
  constexpr int V = 16 / sizeof(T);
  const bool packs = args.dy.contiguous && args.d % V == 0 &&
                     reinterpret_cast<uintptr_t>(args.dy.data) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(args.dtable) % 16 == 0;
  const int64_t groups = (args.num_rows + kRowsOfThread - 1) / kRowsOfThread;
  const int64_t pieces = groups * args.d / (packs ? V : 1);
  return Launch(device, kernel, BlocksFor(pieces), kThreads,
                packs ? SumRowsKernel<T, V> : SumRowsKernel<T, 1>, args);
}

}  // namespace

absl::Status Embedding(Device& device, const char* kernel, const EmbeddingArgs& args) {
  if (args.tokens == 0) return device.failure();
  const bool pieces = IsInPieces(args.table, args.y);
  const TableRows table = pieces ? InPieces(args.table) : args.table;
  return WithIndexRuns(device, kernel, args.rows, [&](const IndexRuns& rows) {
    const CopyRowsArgs copy = {Ids(args.ids, args.id_dtype),
                               IndexCheck(device, kernel, "id", args.num_rows),
                               rows,
                               args.tokens,
                               table,
                               args.y};
    if (pieces) {
      return LaunchRows<kWarp>(device, kernel, args.tokens, CopyRowsKernel<Piece>, copy);
    }
    return WithBits(args.table.size, [&](auto bits) {
      return LaunchRows<kWarp>(device, kernel, args.tokens, CopyRowsKernel<decltype(bits)>, copy);
    });
  });
}

absl::Status EmbeddingGrad(Device& device, const char* kernel, const EmbeddingGradArgs& args) {
  const int64_t bytes = args.num_rows * args.d * SizeOf(args.dtype);
  if (bytes == 0) return device.failure();
  if (args.tokens == 0) return device.FillBytes(args.dtable, 0, bytes);
  return WithTokenOrder(
      device, kernel, Ids(args.ids, args.id_dtype), args.tokens, args.rows, args.num_rows,
      [&](const TokenOrder& order) {
        const SumRowsArgs sum = {order, args.dy, args.num_rows, args.d, args.dtable};
        return VisitFloat(args.dtype,
                          [&](auto t) { return SumRows<decltype(t)>(device, kernel, sum); });
      });
}

}  // namespace dtensor::kernels::cuda
