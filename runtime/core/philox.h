// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011): a bijection of 128-bit counters for each 64-bit key. Random access, no state.
#ifndef DTENSOR_RUNTIME_CORE_PHILOX_H_
#define DTENSOR_RUNTIME_CORE_PHILOX_H_

#include <array>
#include <cstdint>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Not arrays: in code for GPUs, nvcc turns a read of a host array into a trap, without a warning
// (tools/cuda/compile_kernels).
inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53, kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9, kPhiloxKeyStep1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// The two words of a product. If it is computed in 64 bits, nvcc adds a zero to the upper word,
// which costs a third of a round.
struct PhiloxProduct {
  uint32_t upper, lower;
};
constexpr PhiloxProduct PhiloxMultiply(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return {__umulhi(a, b), a * b};
#else
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
#endif
}

constexpr std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const PhiloxProduct p0 = PhiloxMultiply(kPhiloxMultiplier0, counter[0]);
    const PhiloxProduct p1 = PhiloxMultiply(kPhiloxMultiplier1, counter[2]);
    counter = {p1.upper ^ counter[1] ^ key[0], p1.lower, p0.upper ^ counter[3] ^ key[1], p0.lower};
    key = {key[0] + kPhiloxKeyStep0, key[1] + kPhiloxKeyStep1};
  }
  return counter;
}

// How this library uses it: key `seed`, counter (block, stream), low words first.
constexpr std::array<uint32_t, 4> PhiloxBlock(uint64_t seed, uint64_t stream, uint64_t block) {
  return Philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_PHILOX_H_
