#include "dtensor/runtime/device/host/reference_gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Blocks of A (kRows x kDepth) stay in the second-level cache, and so do those of B (kDepth x
// kColumns).
constexpr int64_t kRows = 64, kDepth = 256, kColumns = 256;
// A tile of C is kTileRows high and two vectors wide, and is kept in registers.
constexpr int64_t kTileRows = 4;

// Multiplies a panel of A (depth x kTileRows) by one of B (depth x width): tile(kTileRows, width).
template <typename T>
using Kernel = void (*)(int64_t depth, const T* a, const T* b, T* tile);

template <typename T>
struct TileKernel {
  Kernel<T> run;
  int64_t width;  // of a tile, in elements
};

template <typename T, int kVectorBytes>
[[gnu::always_inline]] inline void MultiplyTile(int64_t depth, const T* a, const T* b, T* tile) {
  typedef T Vector [[gnu::vector_size(kVectorBytes)]];
  constexpr int64_t kLanes = kVectorBytes / sizeof(T);
  Vector sum[kTileRows][2] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += 2 * kLanes) {
    Vector b0, b1;
    std::memcpy(&b0, b, kVectorBytes);
    std::memcpy(&b1, b + kLanes, kVectorBytes);
#pragma GCC unroll 4  // otherwise `sum` would be in memory
    for (int64_t i = 0; i < kTileRows; ++i) {
      sum[i][0] += a[i] * b0;
      sum[i][1] += a[i] * b1;
    }
  }
  std::memcpy(tile, sum, sizeof(sum));
}

// The same code for three kinds of CPU. (target_clones would choose automatically, but crashes
// under ThreadSanitizer before main.)
template <typename T>
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void TileAvx512(int64_t depth, const T* a,
                                                                 const T* b, T* tile) {
  MultiplyTile<T, 64>(depth, a, b, tile);
}
template <typename T>
[[gnu::target("avx2,fma")]] void TileAvx2(int64_t depth, const T* a, const T* b, T* tile) {
  MultiplyTile<T, 32>(depth, a, b, tile);
}
template <typename T>
void TileBaseline(int64_t depth, const T* a, const T* b, T* tile) {
  MultiplyTile<T, 16>(depth, a, b, tile);
}

template <typename T>
TileKernel<T> ChooseKernel(int vector_bytes) {
  constexpr int64_t kLanes16 = 16 / sizeof(T);
#if defined(__x86_64__)
  if (vector_bytes >= 64 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma")) {
    return {TileAvx512<T>, 8 * kLanes16};
  }
  if (vector_bytes >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {TileAvx2<T>, 4 * kLanes16};
  }
#endif
  return {TileBaseline<T>, 2 * kLanes16};
}

// Panels of `width` lines each, side by side: element (p, i) of a panel is at p * width + i.
// `lines` is the number of rows of A or columns of B; the last panel is padded with zeros, whose
// results are not stored.
template <typename T>
void Pack(const T* x, int64_t line_stride, int64_t depth_stride, int64_t lines, int64_t depth,
          int64_t width, T* panels) {
  for (int64_t first = 0; first < lines; first += width) {
    const int64_t used = std::min(width, lines - first);
    const T* panel = x + first * line_stride;
    for (int64_t p = 0; p < depth; ++p, panels += width) {
      for (int64_t i = 0; i < used; ++i) panels[i] = panel[p * depth_stride + i * line_stride];
      std::fill(panels + used, panels + width, T{0});
    }
  }
}

template <typename T>
void Store(const T* tile, int64_t width, int64_t rows, int64_t columns, bool add, T* c,
           int64_t row_stride) {
  for (int64_t i = 0; i < rows; ++i, tile += width, c += row_stride) {
    if (add) {
      for (int64_t j = 0; j < columns; ++j) c[j] += tile[j];
    } else {
      std::copy_n(tile, columns, c);
    }
  }
}

template <typename T>
class Blocks {
 public:
  Blocks(const GemmProblem& gemm, TileKernel<T> kernel, T* a_panels, T* b_panels)
      : p_(gemm), kernel_(kernel), a_panels_(a_panels), b_panels_(b_panels) {}

  void MultiplyMatrix(int64_t index) {
    const T* a = At(p_.a, index);
    const T* b = At(p_.b, index);
    T* c = At(p_.c, index);
    for (int64_t j = 0; j < p_.n; j += kColumns) {
      for (int64_t q = 0; q < p_.k; q += kDepth) {
        const int64_t columns = std::min(kColumns, p_.n - j), depth = std::min(kDepth, p_.k - q);
        Pack(b + q * p_.b.row_stride + j * p_.b.col_stride, p_.b.col_stride, p_.b.row_stride,
             columns, depth, kernel_.width, b_panels_);
        MultiplyRows(a + q * p_.a.col_stride, columns, depth, p_.accumulate || q > 0, c + j);
      }
    }
  }

 private:
  static T* At(const GemmMatrix& x, int64_t index) {
    return static_cast<T*>(x.data) + index * x.batch_stride;
  }

  // All rows of A times the packed block of B.
  void MultiplyRows(const T* a, int64_t columns, int64_t depth, bool add, T* c) {
    for (int64_t i = 0; i < p_.m; i += kRows) {
      const int64_t rows = std::min(kRows, p_.m - i);
      Pack(a + i * p_.a.row_stride, p_.a.row_stride, p_.a.col_stride, rows, depth, kTileRows,
           a_panels_);
      MultiplyPanels(rows, columns, depth, add, c + i * p_.c.row_stride);
    }
  }

  void MultiplyPanels(int64_t rows, int64_t columns, int64_t depth, bool add, T* c) {
    alignas(64) T tile[kTileRows * 128 / sizeof(T)];
    for (int64_t j = 0; j < columns; j += kernel_.width) {
      for (int64_t i = 0; i < rows; i += kTileRows) {
        kernel_.run(depth, a_panels_ + i * depth, b_panels_ + j * depth, tile);
        Store(tile, kernel_.width, std::min(kTileRows, rows - i),
              std::min(kernel_.width, columns - j), add, c + i * p_.c.row_stride + j,
              p_.c.row_stride);
      }
    }
  }

  const GemmProblem& p_;
  const TileKernel<T> kernel_;
  T* const a_panels_;
  T* const b_panels_;
};

template <typename T>
absl::Status RunAs(const GemmProblem& p, int vector_bytes, Scratch& a_scratch, Scratch& b_scratch) {
  void* a = a_scratch.Reserve(kRows * kDepth * sizeof(T));
  void* b = b_scratch.Reserve(kColumns * kDepth * sizeof(T));
  if (a == nullptr || b == nullptr) {
    return absl::ResourceExhaustedError("the system refused the panels of a product");
  }
  Blocks<T> blocks(p, ChooseKernel<T>(vector_bytes), static_cast<T*>(a), static_cast<T*>(b));
  for (int64_t i = 0; i < p.batch; ++i) blocks.MultiplyMatrix(i);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReferenceGemm::Run(const GemmProblem& p) {
  switch (p.dtype) {
    case DType::kF32:
      return RunAs<float>(p, vector_bytes_, a_panels_, b_panels_);
    case DType::kF64:
      return RunAs<double>(p, vector_bytes_, a_panels_, b_panels_);
    // Unsigned arithmetic wraps around, and gives the same bits.
    case DType::kI32:
      return RunAs<uint32_t>(p, vector_bytes_, a_panels_, b_panels_);
    case DType::kI64:
      return RunAs<uint64_t>(p, vector_bytes_, a_panels_, b_panels_);
    default:
      return absl::InternalError("ReferenceGemm was given a type that it does not know");
  }
}

}  // namespace dtensor
