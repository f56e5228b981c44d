// Flattens boxes, on the host, into what the kernel of box.cu reads.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_BOX_TABLE_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_BOX_TABLE_INL_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/kernels/arguments/box_loop.h"
#include "dtensor/runtime/kernels/arguments/box_move.h"
#include "dtensor/runtime/kernels/cuda/box_parts-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"

namespace dtensor::kernels::cuda {

// All parts of one launch. Each box is divided so that what is contiguous, and equally aligned, in
// all operands moves in packs.
class BoxTable {
 public:
  // The loop along which the source has no gaps, if that is not the destination's, and both are
  // long; else -1.
  static int TransposedLoop(const BoxLoop& loop) {
    const int last = loop.depth() - 1;
    if (last < 1 || !loop.contiguous(0) || loop.contiguous(1)) return -1;
    if (loop.size(last) < kTile / 2) return -1;
    for (int d = 0; d < last; ++d) {
      if (loop.stride(d, 1) == loop.element_bytes() && loop.size(d) >= kTile / 2) return d;
    }
    return -1;
  }

  void AddCopy(const BoxLoop& loop) {
    const int64_t n = LastSize(loop);
    int64_t pack = 16 / loop.element_bytes();
    while (pack > 1 && !PacksOf(loop, pack).worthwhile(n)) pack /= 2;
    Cut(loop, pack, {.work = BoxWork::kCopy});
  }

  // For a loop that TransposedLoop() returned. No GPU has memory for so many tiles that their
  // number needs 64 bits.
  void AddTransposed(BoxLoop loop, int across) {
    loop.MoveBesideLast(across);
    const int64_t bytes = loop.element_bytes();
    BoxPart part = {.packed = TurnsPacks(loop)};
    Begin(loop, 0, part);
    part.unit_bytes = static_cast<uint8_t>(bytes);
    const int column = loop.depth() - 1, row = column - 1;
    const int64_t rows = loop.size(row), columns = loop.size(column);
    const int64_t side = TileSide(bytes, part.packed);
    // Tiles that are read at the same time are neighbours in the source: what is written waits in
    // the cache until its neighbours are there.
    AddLoop(loop, row, (rows + side - 1) / side, side, part);
    AddLoop(loop, column, (columns + side - 1) / side, side, part);
    for (int d = row - 1; d >= 0; --d) AddLoop(loop, d, loop.size(d), 1, part);
    const int64_t plane[] = {rows, columns, loop.stride(row, 0), loop.stride(column, 1)};
    words_.insert(words_.end(), std::begin(plane), std::end(plane));
    End(BlocksOfTiles(part.units), part);
  }

  void AddReduction(const BoxMove& move) {
    const BoxLoop& loop = move.loop;
    int64_t pack = ReducePack(loop.element_bytes(1), loop.element_bytes());
    if (!PacksOf(loop, pack).worthwhile(LastSize(loop))) pack = 1;
    Cut(loop, pack,
        {.scale = move.scale,
         .alike = SourcesStepAlike(loop),
         .work = BoxWork::kReduce,
         .in = move.in,
         .out = move.out,
         .op = move.op});
  }

  absl::Span<const BoxPart> parts() const { return parts_; }
  absl::Span<const int64_t> words() const { return words_; }
  int64_t blocks() const { return blocks_; }
  bool is_large() const { return is_large_; }  // the units of some part need 64 bits
  bool is_deep() const { return is_deep_; }    // some part has more loops than the innermost ones

 private:
  // Of each row, elements [head, head + n * pack) in packs.
  struct Packs {
    int64_t head, n, pack;
    bool worthwhile(int64_t row) const { return n * pack * 8 >= row * 7; }
  };

  static int64_t LastSize(const BoxLoop& loop) {
    return loop.depth() == 0 ? 1 : loop.size(loop.depth() - 1);
  }
  static int64_t Stride(const BoxLoop& loop, int d, int operand) {
    return d < 0 ? 0 : loop.stride(d, operand);
  }

  // No packs if one would be misaligned in an operand.
  static Packs PacksOf(const BoxLoop& loop, int64_t pack) {
    const int64_t pack_bytes = pack * loop.element_bytes();
    const auto askew = static_cast<int64_t>(reinterpret_cast<uintptr_t>(loop.base(0)) % pack_bytes);
    const int64_t head = (pack_bytes - askew) % pack_bytes / loop.element_bytes();
    for (int i = 0; i < loop.operands(); ++i) {
      const int64_t bytes = pack * loop.element_bytes(i);
      const auto base = reinterpret_cast<uintptr_t>(loop.base(i));
      bool fits = loop.contiguous(i) && (base + head * loop.element_bytes(i)) % bytes == 0;
      for (int d = 0; d < loop.depth() - 1; ++d) fits = fits && loop.stride(d, i) % bytes == 0;
      if (!fits) return {0, 0, pack};
    }
    return {head, std::max<int64_t>(LastSize(loop) - head, 0) / pack, pack};
  }

  static bool SourcesStepAlike(const BoxLoop& loop) {
    for (int d = 0; d < loop.depth(); ++d) {
      for (int i = 2; i < loop.operands(); ++i) {
        if (loop.stride(d, i) != loop.stride(d, 1)) return false;
      }
    }
    return true;
  }

  // Adds the packs, and the elements before and after them.
  void Cut(const BoxLoop& loop, int64_t pack, const BoxPart& part) {
    const Packs packs = pack > 1 ? PacksOf(loop, pack) : Packs{0, 0, 1};
    const int64_t end = packs.head + packs.n * pack, n = LastSize(loop);
    AddRow(loop, 0, packs.head, 1, part);
    AddRow(loop, packs.head, packs.n, pack, part);
    AddRow(loop, end, n - end, 1, part);
  }

  // n units of `pack` elements in each row, from element `begin` on.
  void AddRow(const BoxLoop& loop, int64_t begin, int64_t n, int64_t pack, BoxPart part) {
    if (n == 0) return;
    Begin(loop, begin, part);
    part.unit_bytes = static_cast<uint8_t>(pack * loop.element_bytes());
    part.packed = pack > 1;
    const int last = loop.depth() - 1;
    AddLoop(loop, last, n, pack, part);
    for (int d = last - 1; d >= 0; --d) AddLoop(loop, d, loop.size(d), 1, part);
    End(BlocksOf(part), part);
  }

  // A thread finds its first unit by divisions, and continues by additions (BoxWalk). So it gets
  // several rounds, unless there would be too few blocks for all processors.
  static constexpr int64_t kRounds = 4, kEnough = 512;
  static int64_t BlocksOf(const BoxPart& part) {
    const int64_t ahead = part.work == BoxWork::kCopy ? kCopiesAhead : 1;
    const int64_t rounds = (part.units + ahead - 1) / ahead;
    const int64_t most = BlocksFor(rounds), least = BlocksFor((rounds + kRounds - 1) / kRounds);
    return std::min(most, std::max(least, kEnough));
  }

  // A block reads its next tile while it writes one.
  static int64_t BlocksOfTiles(int64_t tiles) {
    const int64_t least = std::min((tiles + kRounds - 1) / kRounds, int64_t{1} << 16);
    return std::min(tiles, std::max(least, kEnough));
  }
  // Whether both sides of a transposed copy are made of packs.
  static bool TurnsPacks(const BoxLoop& loop) {
    const int64_t pack = TurnedPack(loop.element_bytes()), bytes = pack * loop.element_bytes();
    const int last = loop.depth() - 1;
    bool turns = loop.size(last) % pack == 0 && loop.size(last - 1) % pack == 0;
    for (int i = 0; i < 2; ++i) {
      turns = turns && reinterpret_cast<uintptr_t>(loop.base(i)) % bytes == 0;
      const int dense = last - i;  // the loop along which operand i has no gaps
      for (int d = 0; d <= last; ++d)
        turns = turns && (d == dense || loop.stride(d, i) % bytes == 0);
    }
    return turns;
  }

  void Begin(const BoxLoop& loop, int64_t begin, BoxPart& part) {
    part.units = 1;
    part.words = static_cast<int32_t>(words_.size());
    part.operands = loop.operands();
    for (int i = 0; i < loop.operands(); ++i) {
      const int64_t offset = begin * Stride(loop, loop.depth() - 1, i);
      words_.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(loop.base(i))) + offset);
    }
  }
  void AddLoop(const BoxLoop& loop, int d, int64_t size, int64_t step, BoxPart& part) {
    part.units *= size;
    ++part.loops;
    words_.push_back(size);
    for (int i = 0; i < loop.operands(); ++i) words_.push_back(step * Stride(loop, d, i));
  }
  void End(int64_t blocks, BoxPart& part) {
    part.first_block = blocks_;
    part.blocks = blocks;
    is_large_ = is_large_ || part.units >= int64_t{1} << 31;
    is_deep_ = is_deep_ || part.loops > kInnerLoops;
    blocks_ += blocks;
    parts_.push_back(part);
  }

  std::vector<BoxPart> parts_;
  std::vector<int64_t> words_;
  int64_t blocks_ = 0;
  bool is_large_ = false, is_deep_ = false;
};

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_BOX_TABLE_INL_H_
