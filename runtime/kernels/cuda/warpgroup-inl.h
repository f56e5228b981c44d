// Products of small matrices by a warpgroup, that is, four warps of a block: PTX's wgmma, which
// only GPUs of compute capability 9.0 have (sm_90a), and the same on the host grid.
//
// Operands in shared memory are panels: rows of 64 elements of 16 bits, 128 bytes, the first at a
// multiple of 1024 bytes, with packs of 8 elements at PackAt<In, 64>. What threads have written
// there is visible once each of them has called PublishShared, followed by a barrier.
//
// Of results, [64, n] of f32, warp w has rows 16 w to 16 w + 15. A lane has the elements that
// matrix-inl.h gives for c: in rows g and g + 8, columns 8 i + 2t and 8 i + 2t + 1.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_WARPGROUP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_WARPGROUP_INL_H_

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/kernels/cuda/matrix-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/tools/cuda/kernel-inl.h"

#ifndef __CUDACC__
#include <vector>

#include "dtensor/runtime/core/status.h"
#endif

namespace dtensor::kernels::cuda {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelAlignment = 1024;  // bytes

// Whether a source is also compiled for these GPUs (sm_90a_srcs in BUILD.bazel).
#if !defined(__CUDACC__) || defined(DTENSOR_SM_90A)
inline constexpr bool kWarpgroupsAreCompiled = true;
#else
inline constexpr bool kWarpgroupsAreCompiled = false;
#endif
inline constexpr int kWarpgroupCapability = 90;

// Whether the current compilation is for them. For others, kernels with these products are empty.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWarpgroups = true;
#else
inline constexpr bool kHasWarpgroups = false;
#endif

__device__ inline void PublishShared() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
  fake_cuda::FenceAsyncProxy();
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace internal {

// PTX's descriptor of a matrix in panels from `at` on, whose groups of 8 rows follow each other.
__device__ inline uint64_t MatrixDescriptor(const void* at) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupBytes = 8 * 128;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(at));
  return kSwizzle128 | kGroupBytes >> 4 << 32 | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}

// The 32 sums of a lane in PTX's order; `low` and `high`: of its two rows.
#define DT_SUMS_4(i) \
  "+f"(low[2 * (i)]), "+f"(low[2 * (i) + 1]), "+f"(high[2 * (i)]), "+f"(high[2 * (i) + 1])
#define DT_SUMS                                                                       \
  DT_SUMS_4(0), DT_SUMS_4(1), DT_SUMS_4(2), DT_SUMS_4(3), DT_SUMS_4(4), DT_SUMS_4(5), \
      DT_SUMS_4(6), DT_SUMS_4(7)
// scale-d, and the signs of both operands: sums are added to.
#define DT_WGMMA(type, operands, is_transposed)                                            \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                              \
  " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16,"           \
  " %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " operands \
  ", 1, 1, 1, " is_transposed ";"

template <typename In>
__device__ void MultiplyAddPanels(uint64_t a, uint64_t b, float* low, float* high) {
  if constexpr (std::is_same_v<In, BFloat16>) {
    asm volatile(DT_WGMMA("bf16", "%32, %33", "0, 0") : DT_SUMS : "l"(a), "l"(b));
  } else {
    asm volatile(DT_WGMMA("f16", "%32, %33", "0, 0") : DT_SUMS : "l"(a), "l"(b));
  }
}

template <typename In>
__device__ void MultiplyAddPanels(const MatrixPart& a, uint64_t b, float* low, float* high) {
#define DT_A "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3])
  if constexpr (std::is_same_v<In, BFloat16>) {
    asm volatile(DT_WGMMA("bf16", "{%32, %33, %34, %35}, %36", "1") : DT_SUMS : DT_A, "l"(b));
  } else {
    asm volatile(DT_WGMMA("f16", "{%32, %33, %34, %35}, %36", "1") : DT_SUMS : DT_A, "l"(b));
  }
#undef DT_A
}

#undef DT_WGMMA
#undef DT_SUMS
#undef DT_SUMS_4

}  // namespace internal

#endif

// Asynchronous products, which continue until End. Until then, no operand may change, and no thread
// may read or write the sums. On the host grid they are computed in End, so that reading or writing
// too early is detected.
template <typename In>
class WarpgroupProducts {
 public:
  // `c`: all sums that are added to until End.
  template <int... kN>
  __device__ void Begin([[maybe_unused]] float (&... c)[2][kN]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    (Settle(c), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }

  // c[:, at : at + 64] += a b^T, of 64 rows of each of two panels, and 16 columns from `column` on.
  template <int kN>
  __device__ void MultiplyRows(const In* a, const In* b, int column, float (&c)[2][kN], int at) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    internal::MultiplyAddPanels<In>(internal::MatrixDescriptor(a + column),
                                    internal::MatrixDescriptor(b + column), c[0] + at / 4,
                                    c[1] + at / 4);
#elif !defined(__CUDACC__)
    CheckPanel(a);
    CheckPanel(b);
    begun_.push_back({a, {}, b, column, c[0] + at / 4, c[1] + at / 4});
#endif
  }

  // c[:, at : at + 64] += a b, of 16 columns of `a` that warps have, each of its rows, and of 16
  // rows of a panel from `row` on.
  template <int kN>
  __device__ void MultiplyColumns(const MatrixPart& a, const In* b, int row, float (&c)[2][kN],
                                  int at) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    internal::MultiplyAddPanels<In>(a, internal::MatrixDescriptor(b + row * kPanelColumns),
                                    c[0] + at / 4, c[1] + at / 4);
#elif !defined(__CUDACC__)
    CheckPanel(b);
    begun_.push_back({nullptr, a, b, row, c[0] + at / 4, c[1] + at / 4});
#endif
  }

  // Waits until all products that were begun are complete.
  template <int... kN>
  __device__ void End(float (&... c)[2][kN]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    (Settle(c), ...);
#elif !defined(__CUDACC__)
    for (const Product& product : begun_) {
      DT_CHECK(((product.low >= c[0] && product.low < c[0] + kN) || ...));
      Make(product);
    }
    begun_.clear();
#endif
  }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
 private:
  // The compiler moves no write of these registers behind this point, and no read before it.
  template <int kN>
  static __device__ void Settle(float (&c)[2][kN]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (float& sum : c[r]) asm volatile("" : "+f"(sum)::"memory");
    }
  }
#endif

#ifndef __CUDACC__
  ~WarpgroupProducts() { DT_CHECK(begun_.empty()); }

 private:
  struct Product {
    const In* rows;  // or null: `part`
    MatrixPart part;
    const In* b;
    int at;  // the first column, or row, of b
    float *low, *high;
  };

  static void CheckPanel(const In* panel) {
    DT_CHECK(reinterpret_cast<uintptr_t>(panel) % kPanelAlignment == 0);
  }
  static float At(const In* panel, int row, int column) {
    const int pack = column / 8 ^ row % 8;
    return Widen(panel[row * kPanelColumns + pack * 8 + column % 8]);
  }

  static void RequirePublished(const In* panel) {
    fake_cuda::RequireFenced(panel, 64 * kPanelColumns * sizeof(In));
  }

  static void Make(const Product& p) {
    if (threadIdx.x == 0) {  // for all
      if (p.rows != nullptr) RequirePublished(p.rows);
      RequirePublished(p.b);
    }
    const int warp = static_cast<int>(threadIdx.x) / fake_cuda::kWarpSize;
    const int g = threadIdx.x % fake_cuda::kWarpSize / 4, t = threadIdx.x % 4;
    float a[2][16];
    if (p.rows != nullptr) {
      for (int k = 0; k < 16; ++k) {
        for (int r = 0; r < 2; ++r) a[r][k] = At(p.rows, 16 * warp + g + 8 * r, p.at + k);
      }
    } else {
      uint64_t all[2][fake_cuda::kWarpSize];
      DT_FROM_ALL_LANES(p.part.at[0] | uint64_t{p.part.at[1]} << 32, all[0]);
      DT_FROM_ALL_LANES(p.part.at[2] | uint64_t{p.part.at[3]} << 32, all[1]);
      for (int k = 0; k < 16; ++k) {
        const uint64_t pairs = all[k / 8][4 * g + k % 8 / 2];
        for (int r = 0; r < 2; ++r) {
          a[r][k] = ElementOf<In>(static_cast<uint32_t>(pairs >> (32 * r)), k % 2);
        }
      }
    }
    for (int e = 0; e < kPanelColumns / 4; ++e) {
      const int column = e / 2 * 8 + 2 * t + e % 2;
      for (int k = 0; k < 16; ++k) {
        const float b = p.rows != nullptr ? At(p.b, column, p.at + k) : At(p.b, p.at + k, column);
        p.low[e] += a[0][k] * b;
        p.high[e] += a[1][k] * b;
      }
    }
  }

  std::vector<Product> begun_;
#endif
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_WARPGROUP_INL_H_
