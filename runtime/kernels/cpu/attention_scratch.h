// How the attention kernels divide their keys, queries and scratch memory.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/kernels/cpu/attention_block.h"

namespace dtensor::kernels {

// Matrices in scratch memory are padded to a multiple of this, which every instruction set's
// vectors divide.
inline constexpr int64_t kAttentionPad = 32;

// Scores are computed in units of log(2): the exponential is then 2^x.
inline constexpr double kLog2E = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

constexpr int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

struct AttentionBlocks {
  int64_t dim;   // padded
  int64_t keys;  // of a block, padded
};

// Blocks of keys such that `elements` matrix elements stay in the second-level cache.
inline AttentionBlocks BlocksOf(const AttentionShape& shape, int64_t elements) {
  AttentionBlocks blocks;
  blocks.dim = RoundUp(std::max<int64_t>(shape.dim, 1), kAttentionPad);
  const int64_t most = std::clamp<int64_t>(elements / blocks.dim, 64, 512);
  const int64_t all = std::max<int64_t>(shape.keys, 1);
  blocks.keys = RoundUp(std::min(most / kAttentionPad * kAttentionPad, all), kAttentionPad);
  return blocks;
}

// Hands out the parts of scratch memory, 64-byte aligned; without memory, counts.
class AttentionScratch {
 public:
  explicit AttentionScratch(void* data) : data_(static_cast<char*>(data)) {}

  template <typename T>
  T* Take(int64_t n) {
    T* const part = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + bytes_);
    bytes_ += RoundUp(n * static_cast<int64_t>(sizeof(T)), 64);
    return part;
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* data_;
  int64_t bytes_ = 0;
};

// Of a block of keys.
template <typename T>
struct DropoutScratch {
  uint32_t *groups, *words;  // of four positions each; four words each
  int32_t* places;           // of each key, its word
  T* factors;                // of each key, for one row

  DropoutScratch(const AttentionShape& shape, const AttentionBlocks& blocks,
                 AttentionScratch& scratch) {
    const int64_t keys = shape.drops ? blocks.keys : 0;
    const int64_t most = shape.drops ? keys + kAttentionPad : 0;  // groups, and a vector more
    groups = scratch.Take<uint32_t>(most);
    words = scratch.Take<uint32_t>(4 * most);
    places = scratch.Take<int32_t>(keys);
    factors = scratch.Take<T>(keys);
  }
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_SCRATCH_H_
