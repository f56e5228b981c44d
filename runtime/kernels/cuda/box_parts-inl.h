// Boxes as input of the kernel of box.cu: parts, and the loops of each.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_BOX_PARTS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_BOX_PARTS_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"
#include "dtensor/tools/cuda/kernel-inl.h"

namespace dtensor::kernels::cuda {

enum class BoxWork : uint8_t { kCopy, kReduce };

// How many loads of a thread are in flight before the first one is waited for.
inline constexpr int kCopiesAhead = 4, kTermsAhead = 2;

// The units of one box, all of one kind: elements; packs of neighbours, if rows have no gaps; or
// tiles.
struct BoxPart {
  int64_t first_block, blocks;  // the blocks of the grid that work on it
  int64_t units;
  double scale;        // kReduce
  int32_t words;       // where its BoxWords begin
  int32_t operands;    // the destination, then the sources
  uint8_t loops;       // at least one
  uint8_t unit_bytes;  // kCopy: of a unit; of a transposed copy: of an element
  bool packed;         // kReduce: units are packs of ReducePack() elements; see also Plane
  bool alike;          // kReduce: all sources have the same steps in all loops
  BoxWork work;        // unused for a transposed copy, which has its own kernel
  DType in, out;       // kReduce
  ReduceOp op;         // kReduce
};

// For each part: the addresses of the operands; for each loop, innermost first, its size and its
// step in each operand; after these, for a transposed copy, a Plane. All in bytes.
inline constexpr int kNearParts = 16, kNearWords = 380;
using BoxParts = List<BoxPart, kNearParts>;
using BoxWords = List<int64_t, kNearWords>;

// On the GPU: where the words of a loop begin.
__device__ inline int LoopAt(const BoxPart& part, int d) {
  return part.words + part.operands + d * (part.operands + 1);
}

// The number of innermost loops, whose indices are kept separately, in registers.
inline constexpr int kInnerLoops = 3;

// On the GPU: a unit's index in each of the innermost loops of its part, and its index in all other
// loops together. `Index` holds the number of units.
template <typename Index>
struct BoxUnit {
  Index inner[kInnerLoops], outer;
};
template <typename Index>
__device__ BoxUnit<Index> UnitOf(const BoxWords& words, const BoxPart& part, Index i) {
  BoxUnit<Index> unit;
#pragma unroll
  for (int d = 0; d < kInnerLoops; ++d) {
    Index rest = 0, size = 1;
    if (d + 1 < part.loops) {
      size = static_cast<Index>(words[LoopAt(part, d)]);
      rest = i / size;
    }
    unit.inner[d] = i - rest * size;
    i = rest;
  }
  unit.outer = i;
  return unit;
}

// On the GPU: every step'th unit of a part from `first` on. From one unit to the next, each loop
// steps a constant number of times, apart from carries, so only the first unit needs divisions. If
// !kDeep, no part has more than the innermost loops.
template <typename Index, bool kDeep>
class BoxWalk {
 public:
  using Unit = BoxUnit<Index>;
  __device__ BoxWalk(const BoxWords& words, const BoxPart& part, Index first, Index step)
      : n_(static_cast<Index>(part.units)),
        i_(first),
        step_(step),
        unit_(UnitOf(words, part, first)),
        by_(UnitOf(words, part, step)) {
#pragma unroll
    for (int d = 0; d < kInnerLoops; ++d) {
      const bool carries = d + 1 < part.loops;
      size_[d] = carries ? static_cast<Index>(words[LoopAt(part, d)]) : ~Index{0};
    }
  }

  __device__ bool more() const { return i_ < n_; }
  __device__ const Unit& unit() const { return unit_; }
  __device__ void Next() {
    i_ += step_;
    Index carry = 0;
#pragma unroll
    for (int d = 0; d < kInnerLoops; ++d) {
      const Index next = unit_.inner[d] + by_.inner[d] + carry;
      carry = (kDeep || d + 1 < kInnerLoops) && next >= size_[d] ? 1 : 0;
      unit_.inner[d] = next - (carry != 0 ? size_[d] : 0);
    }
    if (kDeep) unit_.outer += by_.outer + carry;
  }

 private:
  Index n_, i_, step_;
  Unit unit_, by_;
  Index size_[kInnerLoops];
};

// On the GPU: an operand's address and its steps in the innermost loops. They are kept in registers
// since, for all that the compiler knows, a store might change the BoxWords.
struct BoxOperand {
  int operand;
  int64_t base, stride[kInnerLoops];
};
__device__ inline BoxOperand OperandOf(const BoxWords& words, const BoxPart& part, int operand) {
  BoxOperand found = {operand, words[part.words + operand], {}};
#pragma unroll
  for (int d = 0; d < kInnerLoops; ++d) {
    found.stride[d] = d < part.loops ? words[LoopAt(part, d) + 1 + operand] : 0;
  }
  return found;
}

// On the GPU: where a unit lies in an operand.
template <typename Index>
__device__ int64_t OuterOffset(const BoxWords& words, const BoxPart& part, int operand,
                               Index outer) {
  int64_t offset = 0;
#pragma unroll 1
  for (int d = kInnerLoops; d < part.loops; ++d) {
    const int loop = LoopAt(part, d);
    Index rest = 0, size = 1;
    if (d + 1 < part.loops) {
      size = static_cast<Index>(words[loop]);
      rest = outer / size;
    }
    offset += static_cast<int64_t>(outer - rest * size) * words[loop + 1 + operand];
    outer = rest;
  }
  return offset;
}
template <bool kDeep, typename Index>
__device__ std::byte* UnitAt(const BoxWords& words, const BoxPart& part, const BoxOperand& in,
                             const BoxUnit<Index>& unit) {
  int64_t address = in.base;
#pragma unroll
  for (int d = 0; d < kInnerLoops; ++d) {
    address += static_cast<int64_t>(unit.inner[d]) * in.stride[d];
  }
  if constexpr (kDeep) {
    if (part.loops > kInnerLoops) address += OuterOffset(words, part, in.operand, unit.outer);
  }
  return reinterpret_cast<std::byte*>(address);
}

// On the GPU: the part that a block works on.
__device__ inline const BoxPart& PartOf(const BoxParts& parts, int64_t block) {
  int64_t low = 0, high = parts.size;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (parts[middle].first_block <= block ? low : high) = middle;
  }
  return parts[low];
}

// The two innermost loops of a transposed copy: the destination's rows have no gaps, nor have the
// source's columns.
struct Plane {
  int64_t rows, columns;
  int64_t row_dst, column_src;
};

// On the GPU.
__device__ inline Plane PlaneOf(const BoxWords& words, const BoxPart& part) {
  const int at = part.words + part.operands + part.loops * (part.operands + 1);
  return {words[at], words[at + 1], words[at + 2], words[at + 3]};
}

// Its tiles are squares. If both sides consist of packs of TurnedPack() elements, a thread
// transposes a square of so many packs, and kSide * kSide of them make a tile.
inline constexpr int kTile = 32, kSide = 16;
static_assert(kSide * kSide == kThreads);
constexpr int64_t TurnedPack(int64_t bytes) { return std::min<int64_t>(16 / bytes, 8); }
constexpr int64_t TileSide(int64_t bytes, bool packed) {
  return packed ? kSide * TurnedPack(bytes) : kTile;
}

// How many neighbours are reduced at once: as many as 16 bytes hold of the wider type, but at most
// 8, since each needs a register.
constexpr int64_t ReducePack(int64_t in_bytes, int64_t out_bytes) {
  return std::min<int64_t>(16 / std::max(in_bytes, out_bytes), 8);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_BOX_PARTS_INL_H_
