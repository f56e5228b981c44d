#include "dtensor/runtime/kernels/cuda/embedding.h"

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/token_order-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// What a table's rows are copied in, where they are made of such.
using Piece = Pack<uint64_t, 2>;

struct CopyRowsArgs {
  Ids ids;
  IndexCheck check;
  IndexRuns rows;
  int64_t tokens;
  TableRows table;
  void* y;
};

// A warp copies a token's row; zeros where the table lacks it.
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

// In ascending order of the tokens, as on the CPU.
struct SumRowsArgs {
  TokenOrder order;
  StridedInput dy;
  int64_t d;
  void* dtable;
};

template <typename T, int V>
__device__ Pack<T, V> LoadGrad(const SumRowsArgs& a, int64_t i) {
  if constexpr (V == 1) {
    return {{ElementOf<T>(a.dy, i)}};
  } else {
    return *reinterpret_cast<const Pack<T, V>*>(reinterpret_cast<const T*>(a.dy.data) + i);
  }
}

// Adds up V columns over the tokens of the row whose first is at `i` of the order.
template <typename T, int V>
__device__ void SumRow(const SumRowsArgs& a, int64_t i, int64_t column, Compute<T> (&sum)[V]) {
  // Tokens that are read at once, first where they are, then all: a row may be that of half of the
  // tokens, as padding's is, and each wait is one for memory.
  constexpr int kAhead = 8;
  const uint64_t row = a.order.RowAt(i);
  bool more = true;
  while (more) {
    int64_t token[kAhead];
    Pack<T, V> grads[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const bool is_here = i + k < a.order.size && a.order.RowAt(i + k) == row;
      token[k] = is_here ? a.order.TokenAt(i + k) : -1;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (token[k] >= 0) grads[k] = LoadGrad<T, V>(a, token[k] * a.d + column);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      for (int v = 0; v < V && token[k] >= 0; ++v) sum[v] += Widen(grads[k].at[v]);
    }
    more = token[kAhead - 1] >= 0;
    i += kAhead;
  }
}

// A thread for V columns of each token: that of a row's first token adds up all.
template <typename T, int V>
__global__ void SumRowsKernel(SumRowsArgs a) {
  WithIndex(a.order.size * (a.d / V), [&](auto n) {
    using Index = decltype(n);
    const auto packs = static_cast<Index>(a.d / V);
    ForEachPiece<Index>(n, [&](Index piece) {
      const auto i = static_cast<int64_t>(piece / packs);
      const uint64_t row = a.order.RowAt(i);
      if (row == a.order.no_row || (i > 0 && a.order.RowAt(i - 1) == row)) return;
      const int64_t column = static_cast<int64_t>(piece % packs) * V;
      Compute<T> sum[V] = {};
      SumRow<T, V>(a, i, column, sum);
      Pack<T, V> rounded;
      for (int v = 0; v < V; ++v) rounded.at[v] = Round<T>(sum[v]);
      T* const to = static_cast<T*>(a.dtable) + static_cast<int64_t>(row) * a.d + column;
      *reinterpret_cast<Pack<T, V>*>(to) = rounded;
    });
  });
}

template <typename T>
absl::Status SumRows(Device& device, const char* kernel, const SumRowsArgs& args) {
  constexpr int V = 16 / sizeof(T);
  const bool packs = args.dy.contiguous && args.d % V == 0 &&
                     reinterpret_cast<uintptr_t>(args.dy.data) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(args.dtable) % 16 == 0;
  const int64_t pieces = args.order.size * args.d / (packs ? V : 1);
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
  DT_RETURN_IF_ERROR(device.FillBytes(args.dtable, 0, bytes));
  if (bytes == 0 || args.tokens == 0) return device.failure();
  return WithTokenOrder(device, kernel, Ids(args.ids, args.id_dtype), args.tokens, args.rows,
                        args.num_rows, [&](const TokenOrder& order) {
                          const SumRowsArgs sum = {order, args.dy, args.d, args.dtable};
                          return VisitFloat(args.dtype, [&](auto t) {
                            return SumRows<decltype(t)>(device, kernel, sum);
                          });
                        });
}

}  // namespace dtensor::kernels::cuda
