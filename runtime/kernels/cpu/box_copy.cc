#include "dtensor/runtime/kernels/cpu/box_copy.h"

#include <algorithm>
#include <cstring>

#include "dtensor/runtime/kernels/cpu/streaming.h"

namespace dtensor {
namespace {

constexpr int64_t kLine = 64;  // bytes of a cache line

// The two innermost loops of a copy whose rows have gaps on one side.
struct Plane {
  int64_t rows, row_dst, row_src;
  int64_t columns, column_dst, column_src;
};

Plane PlaneOf(const BoxLoop& loop) {
  const int last = loop.depth() - 1;
  Plane plane{1, 0, 0, loop.size(last), loop.stride(last, 0), loop.stride(last, 1)};
  if (last > 0) {
    plane.rows = loop.size(last - 1);
    plane.row_dst = loop.stride(last - 1, 0);
    plane.row_src = loop.stride(last - 1, 1);
  }
  return plane;
}

template <typename T>
void CopyElements(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                  int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(dst + i * dst_stride, src + i * src_stride, sizeof(T));
  }
}

// A tile reads elements of one cache line for each column. Returns whether these lines evict each
// other from the cache, or are too far apart to be prefetched.
bool LinesCollide(int64_t stride, int64_t lines) {
  constexpr int64_t kWay = 4096, kFar = 8192, kMostOfASet = 8;  // bytes; lines
  return stride >= kFar || lines * std::min(stride & -stride, kWay) / kWay > kMostOfASet;
}

// Copies in tiles, so that a cache line of the source of which one row reads an element is still in
// the cache when the next row reads the neighbouring element.
template <typename T>
void CopyPlane(const Plane& p, std::byte* dst, const std::byte* src) {
  constexpr int64_t kTile = kLine / sizeof(T);
  for (int64_t row = 0; row < p.rows; row += kTile) {
    const int64_t row_end = std::min(p.rows, row + kTile);
    for (int64_t column = 0; column < p.columns; column += kTile) {
      const int64_t n = std::min(kTile, p.columns - column);
      for (int64_t r = row; r < row_end; ++r) {
        CopyElements<T>(dst + r * p.row_dst + column * p.column_dst, p.column_dst,
                        src + r * p.row_src + column * p.column_src, p.column_src, n);
      }
    }
  }
}

// The same for lines that would be evicted by then: reads each line once, into a buffer. Requires:
// row_src == sizeof(T).
template <typename T>
void CopyPlaneByLines(const Plane& p, std::byte* dst, const std::byte* src) {
  constexpr int64_t kTile = kLine / sizeof(T);
  alignas(kLine) T tile[kTile][kTile];
  for (int64_t row = 0; row < p.rows; row += kTile) {
    const int64_t rows = std::min(kTile, p.rows - row);
    for (int64_t column = 0; column < p.columns; column += kTile) {
      const int64_t n = std::min(kTile, p.columns - column);
      const std::byte* from = src + row * p.row_src + column * p.column_src;
      for (int64_t c = 0; c < n; ++c, from += p.column_src) {
        T line[kTile] = {};
        if (rows == kTile) {
          std::memcpy(line, from, kLine);
        } else {
          std::memcpy(line, from, rows * sizeof(T));
        }
        for (int64_t r = 0; r < kTile; ++r) tile[r][c] = line[r];
      }
      for (int64_t r = 0; r < rows; ++r) {
        CopyElements<T>(dst + (row + r) * p.row_dst + column * p.column_dst, p.column_dst,
                        reinterpret_cast<const std::byte*>(tile[r]), sizeof(T), n);
      }
    }
  }
}

template <typename Fn>
void WithElementType(int64_t element_bytes, Fn fn) {
  switch (element_bytes) {
    case 1:
      return fn(uint8_t{});
    case 2:
      return fn(uint16_t{});
    case 4:
      return fn(uint32_t{});
    default:
      return fn(uint64_t{});
  }
}

// Copies a plane's rows, of kBytes each.
template <int64_t kBytes>
void CopyShortRows(const Plane& p, std::byte* dst, const std::byte* src) {
  for (int64_t r = 0; r < p.rows; ++r) {
    std::memcpy(dst + r * p.row_dst, src + r * p.row_src, kBytes);
  }
}

// The function that copies a plane's rows of `bytes` bytes, or null if there is none. For so few
// bytes, calling memcpy costs more than the copy itself.
using PlaneCopy = void (*)(const Plane&, std::byte*, const std::byte*);
PlaneCopy ShortRowsCopy(int64_t bytes) {
  switch (bytes) {
    case 2:
      return CopyShortRows<2>;
    case 3:
      return CopyShortRows<3>;
    case 4:
      return CopyShortRows<4>;
    case 6:
      return CopyShortRows<6>;
    case 8:
      return CopyShortRows<8>;
    case 12:
      return CopyShortRows<12>;
    case 16:
      return CopyShortRows<16>;
    case 24:
      return CopyShortRows<24>;
    case 32:
      return CopyShortRows<32>;
    case 64:
      return CopyShortRows<64>;
    default:
      return nullptr;
  }
}

// Copies rows that are contiguous on both sides.
void CopyRows(const BoxLoop& loop, bool stream) {
  if (loop.depth() > 1) {
    const Plane plane = PlaneOf(loop);
    if (const PlaneCopy copy = ShortRowsCopy(plane.columns * loop.element_bytes())) {
      return loop.ForEach(2, [&](std::byte* const* at) { copy(plane, at[0], at[1]); });
    }
  }
  const bool scalar = loop.depth() == 0;
  const int64_t run = scalar ? loop.bytes() : loop.size(loop.depth() - 1) * loop.element_bytes();
  const bool stream_run = stream && run >= kStreamRunBytes;
  const int64_t step = loop.depth() > 1 ? loop.stride(loop.depth() - 2, 1) : run;
  const bool gaps = step != run;
  loop.ForEach(1, [&](std::byte* const* at) {
    if (stream_run) {
      StreamCopy(at[0], at[1], run, gaps ? at[1] + step : nullptr);
    } else {
      std::memcpy(at[0], at[1], run);
    }
  });
  kernels::FinishStores(stream_run);
}

// The loop with the smallest stride in the source, of all but the last.
int TightestSourceLoop(const BoxLoop& loop) {
  int best = loop.depth() - 2;
  for (int i = best - 1; i >= 0; --i) {
    if (loop.stride(i, 1) < loop.stride(best, 1)) best = i;
  }
  return best;
}

}  // namespace

void CopyStrided(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                 int64_t n, int64_t element_bytes) {
  WithElementType(element_bytes,
                  [&](auto t) { CopyElements<decltype(t)>(dst, dst_stride, src, src_stride, n); });
}

void CopyBox(const BoxLoop& box, bool stream) {
  if (box.bytes() == 0 || box.in_place()) return;
  if (box.contiguous(0) && box.contiguous(1)) return CopyRows(box, stream);
  BoxLoop loop = box;
  if (loop.depth() > 1) loop.MoveBesideLast(TightestSourceLoop(loop));
  const Plane plane = PlaneOf(loop);
  WithElementType(loop.element_bytes(), [&](auto t) {
    using T = decltype(t);
    const bool by_lines = sizeof(T) < 8 && plane.row_src == sizeof(T) &&
                          LinesCollide(plane.column_src, kLine / sizeof(T));
    if (by_lines) {
      loop.ForEach(2, [&](std::byte* const* at) { CopyPlaneByLines<T>(plane, at[0], at[1]); });
    } else {
      loop.ForEach(2, [&](std::byte* const* at) { CopyPlane<T>(plane, at[0], at[1]); });
    }
  });
}

}  // namespace dtensor
