// Boxes as the kernel of box.cu reads them: parts, and for each where its loops go.
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

enum class BoxWork : uint8_t { kCopy, kTranspose, kReduce };

// So many loads of a thread are under way before the first of them is waited for.
inline constexpr int kCopiesAhead = 4, kTermsAhead = 2;

// Units of one box, all alike: elements; packs of neighbours, where rows have no gaps; or tiles.
struct BoxPart {
  int64_t first_block, blocks;  // of the grid: those that work on it
  int64_t units;
  double scale;        // kReduce
  int32_t words;       // where BoxWords tell of it
  int32_t operands;    // the destination, then the sources
  uint8_t loops;       // at least one
  uint8_t unit_bytes;  // kCopy: of a unit; kTranspose: of an element
  bool packed;         // kReduce: units are packs of ReducePack() elements; kTranspose: see there
  BoxWork work;
  DType in, out;  // kReduce
  ReduceOp op;    // kReduce
};

// For each part: addresses of the operands; for each loop, innermost first, its size and what it
// steps in each operand; behind them, of a kTranspose, a Plane. All in bytes.
inline constexpr int kNearParts = 16, kNearWords = 380;
using BoxParts = List<BoxPart, kNearParts>;
using BoxWords = List<int64_t, kNearWords>;

// On the GPU: how often the loops of a part have stepped where a unit lies: the innermost ones, and
// all others together. `Index` holds the number of units.
template <typename Index>
struct BoxUnit {
  static constexpr int kInner = 4;
  Index inner[kInner], outer;
};
template <typename Index>
__device__ BoxUnit<Index> UnitOf(const BoxWords& words, const BoxPart& part, Index i) {
  BoxUnit<Index> unit;
#pragma unroll
  for (int d = 0; d < unit.kInner; ++d) {
    Index rest = 0, size = 1;
    if (d + 1 < part.loops) {
      size = static_cast<Index>(words[part.words + part.operands + d * (part.operands + 1)]);
      rest = i / size;
    }
    unit.inner[d] = i - rest * size;
    i = rest;
  }
  unit.outer = i;
  return unit;
}

// On the GPU: where a unit lies in an operand.
template <typename Index>
__device__ int64_t OuterOffset(const BoxWords& words, const BoxPart& part, int operand,
                               Index outer) {
  int64_t offset = 0;
#pragma unroll 1
  for (int d = BoxUnit<Index>::kInner; d < part.loops; ++d) {
    const int loop = part.words + part.operands + d * (part.operands + 1);
    const Index size = static_cast<Index>(words[loop]), rest = outer / size;
    offset += static_cast<int64_t>(outer - rest * size) * words[loop + 1 + operand];
    outer = rest;
  }
  return offset;
}
template <typename Index>
__device__ std::byte* UnitAt(const BoxWords& words, const BoxPart& part, int operand,
                             const BoxUnit<Index>& unit) {
  int64_t address = words[part.words + operand];
#pragma unroll
  for (int d = 0; d < unit.kInner; ++d) {
    if (d >= part.loops) break;
    const int loop = part.words + part.operands + d * (part.operands + 1);
    address += static_cast<int64_t>(unit.inner[d]) * words[loop + 1 + operand];
  }
  if (part.loops > unit.kInner) address += OuterOffset(words, part, operand, unit.outer);
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

// Its tiles are squares. Where both sides are made of packs of TurnedPack() elements, a thread
// turns a square of so many packs, and kSide * kSide of them make a tile.
inline constexpr int kTile = 32, kSide = 16;
static_assert(kSide * kSide == kThreads);
constexpr int64_t TurnedPack(int64_t bytes) { return std::min<int64_t>(16 / bytes, 8); }
constexpr int64_t TileSide(int64_t bytes, bool packed) {
  return packed ? kSide * TurnedPack(bytes) : kTile;
}

// How many neighbours are reduced at once: as 16 bytes hold of the wider type, but no more than 8,
// for each has a register.
constexpr int64_t ReducePack(int64_t in_bytes, int64_t out_bytes) {
  return std::min<int64_t>(16 / std::max(in_bytes, out_bytes), 8);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_BOX_PARTS_INL_H_
