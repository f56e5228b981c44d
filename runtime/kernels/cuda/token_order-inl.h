// Tokens by the row of a table that each has, and among those of one row in their own order: what
// sums over the tokens of a row go by, so that they have the same bits each time.
//
// Row and token make one number, so that no two are equal, and any sort of them is this one: pairs
// of sorted runs are merged until there is one run. Where a number goes is found by itself: behind
// those before it in its own run, and those of the other run that are smaller.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_

#include <algorithm>
#include <bit>
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

// Among a kernel's arguments: in ascending order, those of no row last.
struct TokenOrder {
  const uint64_t* keys;
  int64_t size;
  int shift;  // a key is row << shift | token
  uint64_t no_row;

  __device__ uint64_t RowAt(int64_t i) const { return keys[i] >> shift; }
  __device__ int64_t TokenAt(int64_t i) const {
    return static_cast<int64_t>(keys[i] & ((uint64_t{1} << shift) - 1));
  }
};

namespace internal {

constexpr int kTile = 1024;  // keys that a block sorts by itself

// Where the key at i, in sorted runs of `run` keys each, a power of 2, comes to be when each second
// one is merged into the one before it.
__device__ inline int64_t PlaceInMerged(const uint64_t* keys, int64_t n, int64_t run, int64_t i) {
  const uint64_t key = keys[i];
  const int64_t own = i & ~(run - 1), other = own ^ run;
  const int64_t other_begin = other < n ? other : n;
  int64_t low = other_begin, high = n - other_begin < run ? n : other_begin + run;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (own < other ? own : other) + (i - own) + (low - other_begin);
}

struct TileArgs {
  Ids ids;
  IndexRuns rows;
  TokenOrder order;
  uint64_t* keys;  // where they go
};

static __global__ void SortTilesKernel(TileArgs a) {
  DT_SHARED(uint64_t, tile, 2 * kTile);
  uint64_t *from = tile, *to = tile + kTile;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int n = static_cast<int>(a.order.size - first < kTile ? a.order.size - first : kTile);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const int64_t position = a.rows.PositionOf(a.ids[first + i]);
    const uint64_t row = position < 0 ? a.order.no_row : position;
    from[i] = row << a.order.shift | static_cast<uint64_t>(first + i);
  }
  for (int run = 1; run < kTile; run *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[PlaceInMerged(from, n, run, i)] = from[i];
    uint64_t* const sorted = to;
    to = from;
    from = sorted;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) a.keys[first + i] = from[i];
}

static __global__ void MergeKernel(const uint64_t* from, int64_t n, int64_t run, uint64_t* to) {
  ForEachPiece<int64_t>(n, [&](int64_t i) { to[PlaceInMerged(from, n, run, i)] = from[i]; });
}

// Sorts into one of the two halves of `memory`, where order.keys then points.
inline absl::Status SortTokens(Device& device, const char* name, const Ids& ids,
                               const IndexRuns& rows, uint64_t* memory, TokenOrder& order) {
  const int64_t n = order.size;
  uint64_t *keys = memory, *next = memory + n;
  const auto tiles = static_cast<unsigned>((n + kTile - 1) / kTile);
  DT_RETURN_IF_ERROR(
      Launch(device, name, tiles, kThreads, SortTilesKernel, TileArgs{ids, rows, order, keys}));
  for (int64_t run = kTile; run < n; run *= 2) {
    DT_RETURN_IF_ERROR(
        Launch(device, name, BlocksFor(n), kThreads, MergeKernel, keys, n, run, next));
    std::swap(keys, next);
  }
  order.keys = keys;
  return absl::OkStatus();
}

}  // namespace internal

// Calls launch(order) with the order of `tokens` > 0 ids, which launches what reads it. A token's
// row is its id's position in `lookup`, below num_rows. Errors: kResourceExhausted, the device's
// failure, launch's.
template <typename Fn>
absl::Status WithTokenOrder(Device& device, const char* name, const Ids& ids, int64_t tokens,
                            const IndexLookup& lookup, int64_t num_rows, Fn launch) {
  const uint64_t last = tokens - 1, no_row = num_rows;
  TokenOrder order = {nullptr, tokens, static_cast<int>(std::bit_width(last)), no_row};
  if (order.shift + std::bit_width(no_row) > 64) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": ", tokens, " ids and ", num_rows,
                     " rows are more than a GPU's kernel can count; split the ids"));
  }
  const int64_t bytes = 2 * tokens * static_cast<int64_t>(sizeof(uint64_t));
  DT_ASSIGN_OR_RETURN(const Scratch memory, Scratch::Make(device, bytes));
  DT_RETURN_IF_ERROR(WithIndexRuns(device, name, lookup, [&](const IndexRuns& rows) {
    return internal::SortTokens(device, name, ids, rows, static_cast<uint64_t*>(memory.get()),
                                order);
  }));
  return launch(order);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_TOKEN_ORDER_INL_H_
