// Packs that wait in registers.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"

namespace dtensor::kernels::cuda {

// A Pack as words: where packs of narrow elements wait, nvcc gives each element a register, and
// may store them one by one. In global memory.
template <typename T, int V>
struct alignas(sizeof(T) * V) PackWords {
  static constexpr int kBytes = sizeof(T) * V;
  using Word =
      std::conditional_t<kBytes % 16 == 0, uint4, std::conditional_t<kBytes % 4 == 0, uint32_t, T>>;
  Word words[kBytes / sizeof(Word)];

  static __device__ PackWords Load(const T* from) {
    return *reinterpret_cast<const PackWords*>(from);
  }
  static __device__ PackWords Of(const Pack<T, V>& pack) { return std::bit_cast<PackWords>(pack); }
  __device__ Pack<T, V> pack() const { return std::bit_cast<Pack<T, V>>(*this); }
  __device__ void Store(T* to) const {
#ifdef __CUDACC__
    if constexpr (kBytes == 16) {
      const uint4 word = words[0];
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y),
                   "r"(word.z), "r"(word.w)
                   : "memory");
      return;
    }
#endif
    *reinterpret_cast<PackWords*>(to) = *this;
  }
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_
