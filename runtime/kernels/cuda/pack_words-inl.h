// Packs that are kept in registers until needed.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// A Pack in global memory, as words. For a pack of narrow elements, nvcc would use one register per
// element, and might store them one by one.
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

// The same for a pack of a row (kPack), whose elements are widened later.
template <typename T>
struct alignas(16) Words {
  uint32_t at[4];
};

// All elements, in the type that they are computed in.
template <typename T>
using WidePack = Pack<Compute<T>, kPack<T>>;
template <typename T>
__device__ WidePack<T> WidenPack(const Words<T>& words) {
  WidePack<T> wide;
  if constexpr (std::is_same_v<T, BFloat16>) {  // the upper halves of floats: an instruction each
    for (int w = 0; w < 4; ++w) {
      wide.at[2 * w] = std::bit_cast<float>(words.at[w] << 16);
      wide.at[2 * w + 1] = std::bit_cast<float>(words.at[w] & 0xffff0000);
    }
  } else {
    const auto pack = std::bit_cast<Pack<T, kPack<T>>>(words);
    for (int v = 0; v < kPack<T>; ++v) wide.at[v] = Widen(pack.at[v]);
  }
  return wide;
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_PACK_WORDS_INL_H_
