// Tokens sorted by their row of a table, and within a row by their own order: the order in which
// the tokens of a row are added up, so that sums have the same bits each time.
//
// Row and token together make one number, so all numbers differ, and every sorting method gives the
// same result: groups of sorted runs are merged until there is one run. The position of a number is
// computed for itself: it is the count of those before it in its own run, plus the smaller ones in
// the others.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/scratch-inl.h"

namespace dtensor::kernels::cuda {

// The tokens of one row: the first one itself, since most rows have one, and the position in the
// order at which the others begin.
struct alignas(16) RowTokens {
  int64_t first;   // -1: none
  int64_t others;  // 0: none
};

// A kernel argument. In ascending order; tokens of no row come last.
struct TokenOrder {
  const uint64_t* keys;
  RowTokens* rows;  // for each row
  int64_t size;
  int shift;  // a key is row << shift | token
  uint64_t no_row;

  __device__ uint64_t RowAt(int64_t i) const { return keys[i] >> shift; }
  // The i-th token, if there is one and it has this row, else -1.
  __device__ int64_t TokenOf(uint64_t row, int64_t i) const {
    if (i >= size) return -1;
    const uint64_t key = keys[i];
    if (key >> shift != row) return -1;
    return static_cast<int64_t>(key & ((uint64_t{1} << shift) - 1));
  }
};

namespace internal {

// The keys that one block sorts: so few that many SMs take part, since the merges after it are
// fast.
constexpr int kTile = 1024;
constexpr int kTileThreads = 1024, kKeys = kTile / kTileThreads;
constexpr int kRuns = 8;  // that are merged together

// How many of n sorted keys are smaller; n is at most `most`, a power of 2. All threads take the
// same number of steps, and no branch separates the loads of several searches.
template <typename Index>
__device__ Index CountSmaller(const uint64_t* keys, Index n, Index most, uint64_t key) {
  Index low = 0;
  for (Index step = most; step > 0; step /= 2) {
    const Index next = low + step;
    if (next <= n && keys[next - 1] < key) low = next;
  }
  return low;
}

struct TileArgs {
  Ids ids;
  IndexRuns rows;
  TokenOrder order;
  uint64_t* keys;  // the output
};

// Sorts one tile's keys in place; each thread has its keys in registers while others move.
__device__ inline void SortTile(uint64_t* tile, int n) {
  for (int run = 1; run < kTile; run *= 2) {
    uint64_t key[kKeys];
    int place[kKeys];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const int i = k * kTileThreads + threadIdx.x, own = i & ~(run - 1), other = own ^ run;
      const int others = other >= n ? 0 : n - other < run ? n - other : run;
      key[k] = i < n ? tile[i] : 0;
      place[k] = (own & other) + (i - own) + CountSmaller(tile + other, others, run, key[k]);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      if (k * kTileThreads + static_cast<int>(threadIdx.x) < n) tile[place[k]] = key[k];
    }
  }
  __syncthreads();
}

// A block for each tile; further blocks clear the table of rows.
static __global__ void __launch_bounds__(kTileThreads)
    SortTilesKernel(TileArgs a, int64_t num_rows) {
  DT_SHARED(uint64_t, tile, kTile);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  if (first >= a.order.size) {
    const int64_t tiles = (a.order.size + kTile - 1) / kTile;
    const int64_t step = (gridDim.x - tiles) * kTileThreads;
    for (int64_t i = (blockIdx.x - tiles) * kTileThreads + threadIdx.x; i < num_rows; i += step) {
      a.order.rows[i] = {-1, 0};
    }
    return;
  }
  const int n = static_cast<int>(Lesser(a.order.size - first, kTile));
  for (int i = threadIdx.x; i < n; i += kTileThreads) {
    const int64_t position = a.rows.PositionOf(a.ids[first + i]);
    const uint64_t row = position < 0 ? a.order.no_row : position;
    tile[i] = row << a.order.shift | static_cast<uint64_t>(first + i);
  }
  SortTile(tile, n);
  for (int i = threadIdx.x; i < n; i += kTileThreads) a.keys[first + i] = tile[i];
}

// Merges groups of kRuns sorted runs of `run` keys each, a power of 2, into one run each.
static __global__ void MergeKernel(const uint64_t* from, int64_t n, int64_t run, uint64_t* to) {
  ForEachPiece<int64_t>(n, [&](int64_t i) {
    const uint64_t key = from[i];
    const int64_t first = i / (run * kRuns) * (run * kRuns), own = i & ~(run - 1);
    int64_t smaller[kRuns];
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const int64_t other = first + r * run;
      // In its own run: the keys before it.
      smaller[r] = other == own ? i - own
                   : other >= n ? 0
                                : CountSmaller(from + other, Lesser(n - other, run), run, key);
    }
    int64_t place = first;
    for (int r = 0; r < kRuns; ++r) place += smaller[r];
    to[place] = key;
  });
}

static __global__ void FindRowsKernel(TokenOrder order) {
  ForEachPiece<int64_t>(order.size, [&](int64_t i) {
    const uint64_t row = order.RowAt(i);
    if (row == order.no_row || (i > 0 && order.RowAt(i - 1) == row)) return;
    order.rows[row] = {order.TokenOf(row, i), order.TokenOf(row, i + 1) < 0 ? 0 : i + 1};
  });
}

// Sorts into one of the two halves of `memory`; order.keys then points to it.
inline absl::Status SortTokens(Device& device, const char* name, const Ids& ids,
                               const IndexRuns& rows, int64_t num_rows, uint64_t* memory,
                               TokenOrder& order) {
  const int64_t n = order.size;
  uint64_t *keys = memory, *next = memory + n;
  const auto tiles = static_cast<unsigned>((n + kTile - 1) / kTile);
  DT_RETURN_IF_ERROR(Launch(device, name, tiles + BlocksFor(num_rows), kTileThreads,
                            SortTilesKernel, TileArgs{ids, rows, order, keys}, num_rows));
  for (int64_t run = kTile; run < n; run *= kRuns) {
    DT_RETURN_IF_ERROR(
        Launch(device, name, BlocksFor(n), kThreads, MergeKernel, keys, n, run, next));
    std::swap(keys, next);
  }
  order.keys = keys;
  return Launch(device, name, BlocksFor(n), kThreads, FindRowsKernel, order);
}

}  // namespace internal

// Calls launch(order) with the order of `tokens` > 0 ids, to launch a kernel that reads it. A
// token's row is its id's position in `lookup`, below num_rows. Errors: kResourceExhausted, the
// device's failure, launch's.
template <typename Fn>
absl::Status WithTokenOrder(Device& device, const char* name, const Ids& ids, int64_t tokens,
                            const IndexLookup& lookup, int64_t num_rows, Fn launch) {
  const uint64_t last = tokens - 1, no_row = num_rows;
  TokenOrder order = {nullptr, nullptr, tokens, static_cast<int>(std::bit_width(last)), no_row};
  if (order.shift + std::bit_width(no_row) > 64) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": ", tokens, " ids and ", num_rows,
                     " rows are more than a GPU's kernel can count; split the ids"));
  }
  const int64_t keys = 2 * tokens * static_cast<int64_t>(sizeof(uint64_t));
  const int64_t bytes = keys + num_rows * static_cast<int64_t>(sizeof(RowTokens));
  DT_ASSIGN_OR_RETURN(const Scratch memory, Scratch::Make(device, bytes));
  order.rows = reinterpret_cast<RowTokens*>(static_cast<std::byte*>(memory.get()) + keys);
  DT_RETURN_IF_ERROR(WithIndexRuns(device, name, lookup, [&](const IndexRuns& rows) {
    return internal::SortTokens(device, name, ids, rows, num_rows,
                                static_cast<uint64_t*>(memory.get()), order);
  }));
  return launch(order);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_
