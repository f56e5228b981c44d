// The loops over strided operands that all kernels on host memory share. Each turns arbitrary
// strides into calls on contiguous memory, so a kernel is one loop over contiguous elements.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_WALK_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_WALK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels::cpu {

// dst[i] = src[i * stride], elements of `size` bytes (1, 2, 4 or 8).
void GatherStrided(void* dst, const void* src, int64_t n, int64_t stride, int64_t size);

// dst[r * n + i] = src[r * row_stride + i * stride] for r < rows and i < n. Reads each cache line
// of the source once, whichever of the strides is the smaller one.
void GatherPlane(void* dst, const void* src, int64_t rows, int64_t row_stride, int64_t n,
                 int64_t stride, int64_t size);

// The input in row-major order: its own memory when it is contiguous, otherwise a copy in
// `scratch`.
const void* Packed(const StridedInput& input, std::vector<std::byte>& scratch);

namespace internal {

inline constexpr int64_t kPieceBuffer = 512;   // elements: stays in the first-level cache
inline constexpr int64_t kShortRow = 32;       // several shorter rows make one piece
inline constexpr int64_t kBlockColumns = 128;  // of rows that are gathered together
inline constexpr int64_t kBufferBytes = 64 * kBlockColumns;
static_assert(kPieceBuffer * 8 <= kBufferBytes);

// The row of inputs at `offsets`, whose outputs begin at element `done`.
template <int kIn, int kOut, typename Fn>
void ForEachPieceOfRow(const StridedOperands<kIn, kOut>& x,
                       const typename StridedLoop<kIn>::Offsets& offsets, int64_t done,
                       bool gathers, Fn& fn) {
  const int64_t size = x.loop.inner_size();
  const int64_t step = gathers ? std::min(size, kPieceBuffer) : size;
  alignas(64) std::byte buffers[kIn][kPieceBuffer * 8];
  for (int64_t begin = 0; begin < size; begin += step) {
    const int64_t n = std::min(step, size - begin);
    const void* in[kIn];
    for (int i = 0; i < kIn; ++i) {
      const int64_t stride = x.loop.inner_stride(i);
      in[i] = x.in[i] + (offsets[i] + begin * stride) * x.in_size[i];
      if (stride == 1) continue;
      // A broadcast value fills its buffer once.
      if (stride != 0 || begin == 0) GatherStrided(buffers[i], in[i], n, stride, x.in_size[i]);
      in[i] = buffers[i];
    }
    std::array<void*, kOut> out;
    for (int o = 0; o < kOut; ++o) out[o] = x.out[o] + (done + begin) * x.out_size[o];
    fn(in, out.data(), n);
  }
}

// A plane (the two innermost dimensions) of short rows, whose outputs begin at element `done`:
// processes as many rows at once as the buffers hold.
template <int kIn, int kOut, typename Fn>
void ForEachPieceOfShortRows(const StridedOperands<kIn, kOut>& x,
                             const typename StridedLoop<kIn>::Offsets& offsets, int64_t done,
                             Fn& fn) {
  const int64_t n = x.loop.size(0), rows = x.loop.size(1);
  const int64_t step = std::min(rows, kPieceBuffer / n);
  alignas(64) std::byte buffers[kIn][kBufferBytes];
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const void* in[kIn];
    for (int i = 0; i < kIn; ++i) {
      const int64_t stride = x.loop.stride(0, i), row_stride = x.loop.stride(1, i);
      in[i] = x.in[i] + (offsets[i] + row * row_stride) * x.in_size[i];
      if (stride == 1 && row_stride == n) continue;
      // Rows that are all one fill their buffer once.
      if (row_stride != 0 || row == 0) {
        GatherPlane(buffers[i], in[i], count, row_stride, n, stride, x.in_size[i]);
      }
      in[i] = buffers[i];
    }
    std::array<void*, kOut> out;
    for (int o = 0; o < kOut; ++o) out[o] = x.out[o] + (done + row * n) * x.out_size[o];
    fn(in, out.data(), count * n);
  }
}

// Whether input i is traversed across its cache lines, so that the next rows find their elements in
// the cache.
template <int kIn, int kOut>
bool IsTransposed(const StridedOperands<kIn, kOut>& x, int i) {
  const int64_t stride = std::abs(x.loop.stride(0, i)), next = std::abs(x.loop.stride(1, i));
  return stride * x.in_size[i] >= 64 && next != 0 && next * x.in_size[i] < 64;
}

// Processes a plane in blocks of as many rows as a cache line has elements.
template <int kIn, int kOut, typename Fn>
void ForEachPieceOfBlocks(const StridedOperands<kIn, kOut>& x,
                          const typename StridedLoop<kIn>::Offsets& offsets, int64_t done, Fn& fn) {
  const int64_t n = x.loop.size(0), rows = x.loop.size(1);
  const int64_t row_step = 64 / *std::max_element(x.in_size.begin(), x.in_size.end());
  alignas(64) std::byte buffers[kIn][kBufferBytes];
  for (int64_t row = 0; row < rows; row += row_step) {
    const int64_t count = std::min(row_step, rows - row);
    for (int64_t begin = 0; begin < n; begin += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, n - begin);
      const std::byte* at[kIn];
      int64_t step[kIn];  // bytes from row to row
      for (int i = 0; i < kIn; ++i) {
        const int64_t stride = x.loop.stride(0, i), row_stride = x.loop.stride(1, i);
        at[i] = x.in[i] + (offsets[i] + row * row_stride + begin * stride) * x.in_size[i];
        step[i] = row_stride * x.in_size[i];
        if (stride == 1) continue;
        GatherPlane(buffers[i], at[i], count, row_stride, columns, stride, x.in_size[i]);
        at[i] = buffers[i];
        step[i] = columns * x.in_size[i];
      }
      for (int64_t r = 0; r < count; ++r) {
        const void* in[kIn];
        for (int i = 0; i < kIn; ++i) in[i] = at[i] + r * step[i];
        std::array<void*, kOut> out;
        const int64_t first = done + (row + r) * n + begin;
        for (int o = 0; o < kOut; ++o) out[o] = x.out[o] + first * x.out_size[o];
        fn(in, out.data(), columns);
      }
    }
  }
}

}  // namespace internal

// Contiguous pieces of inputs and outputs: fn(const void* const* in, void* const* out, int64_t n).
// An input whose innermost stride is not 1 (a transposed view, a broadcast) is gathered piece by
// piece into a small buffer. Where there are outputs, pieces come in any order.
template <int kIn, int kOut, typename Fn>
void ForEachPiece(const StridedOperands<kIn, kOut>& x, Fn&& fn) {
  bool gathers = false;
  for (int i = 0; i < kIn; ++i) gathers |= x.loop.inner_stride(i) != 1;
  int64_t done = 0;
  if constexpr (kOut > 0) {
    if (x.loop.ndim() > 1) {
      const bool is_short = x.loop.size(0) <= internal::kShortRow;
      bool transposed = false;
      for (int i = 0; i < kIn; ++i) transposed |= internal::IsTransposed(x, i);
      if (is_short || transposed) {
        x.loop.ForEachBlock(2, [&](const auto& offsets) {
          if (is_short) {
            internal::ForEachPieceOfShortRows(x, offsets, done, fn);
          } else {
            internal::ForEachPieceOfBlocks(x, offsets, done, fn);
          }
          done += x.loop.size(0) * x.loop.size(1);
        });
        return;
      }
    }
  }
  x.loop.ForEachRow([&](const auto& offsets) {
    internal::ForEachPieceOfRow(x, offsets, done, gathers, fn);
    done += x.loop.inner_size();
  });
}

// Whole contiguous rows of the inputs: fn(const void* const* in, const int64_t* row_stride, first,
// count) for groups of at most `most` rows, `row_stride[i]` elements apart; `first` is the
// row-major number of the first. Rows of no elements are visited too.
template <int kIn, typename Fn>
void ForEachRowGroup(const RowOperands<kIn>& x, Fn&& fn,
                     int64_t most = std::numeric_limits<int64_t>::max()) {
  std::array<bool, kIn> gathers;
  for (int i = 0; i < kIn; ++i) gathers[i] = x.stride[i] != 1 && x.n > 1;
  const bool one_by_one = std::find(gathers.begin(), gathers.end(), true) != gathers.end();
  const int64_t rows = x.loop.inner_size(), step = one_by_one ? 1 : most;
  std::array<std::vector<std::byte>, kIn> buffers;
  int64_t first = 0;
  x.loop.ForEachRow([&](const auto& offsets) {
    for (int64_t begin = 0; begin < rows;) {
      const int64_t count = std::min(step, rows - begin);
      const void* in[kIn];
      int64_t row_stride[kIn];
      for (int i = 0; i < kIn; ++i) {
        in[i] = nullptr;
        row_stride[i] = x.loop.inner_stride(i);
        if (x.n == 0) continue;
        in[i] = x.in[i] + (offsets[i] + begin * row_stride[i]) * x.in_size[i];
        if (!gathers[i]) continue;
        buffers[i].resize(x.n * x.in_size[i]);
        GatherStrided(buffers[i].data(), in[i], x.n, x.stride[i], x.in_size[i]);
        in[i] = buffers[i].data();
      }
      fn(in, row_stride, first + begin, count);
      begin += count;
    }
    first += rows;
  });
}

}  // namespace dtensor::kernels::cpu

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_WALK_H_
