// Products of small matrices by a warp: tensor cores on a GPU (sm_80 and later), and the same on
// the host grid. All lanes of the warp call these functions.
//
// A lane holds parts of each matrix, two 16-bit elements per register, as PTX defines for
// mma.m16n8k16. With g = lane / 4 and t = lane % 4:
//
//   a [16, 16]  (g, 2t) (g + 8, 2t) (g, 2t + 8) (g + 8, 2t + 8), each with its right neighbour
//   b [16, 8]   (2t, g) (2t + 8, g), each with the one below it
//   c [16, 8]   (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1), of f32
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_MATRIX_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_MATRIX_INL_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

// A part of an a, or of two adjacent b.
struct MatrixPart {
  uint32_t at[4];
};

// Element `half` of a register.
template <typename In>
__device__ float ElementOf(uint32_t pair, int half) {
  In element;
  element.bits = static_cast<uint16_t>(pair >> (16 * half));
  return Widen(element);
}

namespace internal {

#ifdef __CUDACC__

template <typename In>
__device__ uint32_t RoundPair(float left, float right) {
  uint32_t pair;
  if constexpr (std::is_same_v<In, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(right), "f"(left));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(right), "f"(left));
  }
  return pair;
}

template <typename In>
__device__ void MultiplyAdd(const MatrixPart& a, uint32_t b0, uint32_t b1, float& c0, float& c1,
                            float& c2, float& c3) {
  if constexpr (std::is_same_v<In, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
  }
}

template <bool kTransposed>
__device__ MatrixPart LoadMatrices(const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  MatrixPart part;
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part.at[0]), "=r"(part.at[1]), "=r"(part.at[2]), "=r"(part.at[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(part.at[0]), "=r"(part.at[1]), "=r"(part.at[2]), "=r"(part.at[3])
                 : "r"(address)
                 : "memory");
  }
  return part;
}

#else

template <typename In>
uint32_t RoundPair(float left, float right) {
  return Round<In>(left).bits | uint32_t{Round<In>(right).bits} << 16;
}

inline uint64_t Joined(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

template <typename In>
void MultiplyAdd(const MatrixPart& a, uint32_t b0, uint32_t b1, float& c0, float& c1, float& c2,
                 float& c3) {
  uint64_t all_a[2][fake_cuda::kWarpSize], all_b[fake_cuda::kWarpSize];
  DT_FROM_ALL_LANES(Joined(a.at[0], a.at[1]), all_a[0]);
  DT_FROM_ALL_LANES(Joined(a.at[2], a.at[3]), all_a[1]);
  DT_FROM_ALL_LANES(Joined(b0, b1), all_b);
  const int g = threadIdx.x % fake_cuda::kWarpSize / 4, t = threadIdx.x % 4;
  for (int k = 0; k < 16; ++k) {
    const uint64_t left = all_a[k / 8][4 * g + k % 8 / 2];  // of rows g and g + 8
    const float a0 = ElementOf<In>(static_cast<uint32_t>(left), k % 2);
    const float a1 = ElementOf<In>(static_cast<uint32_t>(left >> 32), k % 2);
    const auto right = [&](int column) {
      const uint64_t pairs = all_b[4 * column + k % 8 / 2];
      return ElementOf<In>(static_cast<uint32_t>(pairs >> (32 * (k / 8))), k % 2);
    };
    const float b_even = right(2 * t), b_odd = right(2 * t + 1);
    c0 += a0 * b_even;
    c1 += a0 * b_odd;
    c2 += a1 * b_even;
    c3 += a1 * b_odd;
  }
}

template <bool kTransposed>
MatrixPart LoadMatrices(const void* row) {
  uint64_t rows[fake_cuda::kWarpSize];
  DT_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0);
  DT_FROM_ALL_LANES(reinterpret_cast<uintptr_t>(row), rows);
  const int g = threadIdx.x % fake_cuda::kWarpSize / 4, t = threadIdx.x % 4;
  MatrixPart part;
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int half = 0; half < 2; ++half) {
      const int from = kTransposed ? 2 * t + half : g, at = kTransposed ? g : 2 * t + half;
      pair[half] = reinterpret_cast<const uint16_t*>(rows[8 * i + from])[at];
    }
    part.at[i] = pair[0] | uint32_t{pair[1]} << 16;
  }
  return part;
}

#endif

}  // namespace internal

// Two elements of a row, rounded to nearest, ties to even.
template <typename In>
__device__ uint32_t RoundPair(float left, float right) {
  return internal::RoundPair<In>(left, right);
}

// c += a b, of BFloat16 or Float16; c in its four elements.
template <typename In>
__device__ void MultiplyAdd(const MatrixPart& a, uint32_t b0, uint32_t b1, float& c0, float& c1,
                            float& c2, float& c3) {
  internal::MultiplyAdd<In>(a, b0, b1, c0, c1, c2, c3);
}

// Four matrices [8, 8] of 16-bit elements in shared memory: lane l supplies the address of row l %
// 8 of matrix l / 8, a multiple of 16 bytes. Register i holds of matrix i the elements (g, 2t) and
// (g, 2t + 1); transposed, (2t, g) and (2t + 1, g).
__device__ inline MatrixPart LoadMatrices(const void* row) {
  return internal::LoadMatrices<false>(row);
}
__device__ inline MatrixPart LoadTransposed(const void* row) {
  return internal::LoadMatrices<true>(row);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_MATRIX_INL_H_
