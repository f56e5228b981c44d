// The loops over strided operands that all kernels on host memory share. Each turns arbitrary
// strides into calls on contiguous memory, so that a kernel is one loop over contiguous elements.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_WALK_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STRIDED_WALK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "dtensor/runtime/kernels/arguments/strided_loop.h"

namespace dtensor::kernels::cpu {

// dst[i] = src[i * stride], elements of `size` bytes (1, 2, 4 or 8).
void GatherStrided(void* dst, const void* src, int64_t n, int64_t stride, int64_t size);

// The input in row-major order: its own memory when it is contiguous, otherwise a copy in
// `scratch`.
const void* Packed(const StridedInput& input, std::vector<std::byte>& scratch);

namespace internal {

inline constexpr int64_t kPieceBuffer = 512;  // elements: stays in the first-level cache

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

}  // namespace internal

// Contiguous pieces of inputs and outputs: fn(const void* const* in, void* const* out, n). An input
// whose innermost stride is not 1 (a transposed view, a broadcast) is gathered piece by piece into
// a small buffer.
template <int kIn, int kOut, typename Fn>
void ForEachPiece(const StridedOperands<kIn, kOut>& x, Fn&& fn) {
  bool gathers = false;
  for (int i = 0; i < kIn; ++i) gathers |= x.loop.inner_stride(i) != 1;
  int64_t done = 0;
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
