#include "dtensor/runtime/kernels/cuda/box.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/box_parts-inl.h"
#include "dtensor/runtime/kernels/cuda/box_table-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// One part, and which of its blocks this is.
template <typename Index, bool kDeep>
struct Share {
  using Walk = BoxWalk<Index, kDeep>;
  using Unit = BoxUnit<Index>;
  const BoxWords& words;
  const BoxPart part;  // in registers
  Index block;

  // The units of this thread.
  __device__ Walk Units() const {
    return Walk(words, part, block * kThreads + threadIdx.x,
                static_cast<Index>(part.blocks) * kThreads);
  }
  // Those of this block are the block'th and each so many behind it.
  __device__ Index n() const { return static_cast<Index>(part.units); }
  __device__ Index blocks() const { return static_cast<Index>(part.blocks); }
  __device__ Unit At(Index i) const { return UnitOf(words, part, i); }

  __device__ BoxOperand Of(int operand) const { return OperandOf(words, part, operand); }
  // Where a unit is in an operand.
  template <typename T>
  __device__ T* In(const BoxOperand& operand, const Unit& unit) const {
    return reinterpret_cast<T*>(UnitAt<kDeep>(words, part, operand, unit));
  }
};

template <typename Bits, typename Share>
__device__ void CopyUnits(const Share& share) {
  const auto dst = share.Of(0), src = share.Of(1);
  for (auto walk = share.Units(); walk.more();) {
    Bits units[kCopiesAhead];
    Bits* to[kCopiesAhead];
    int n = 0;
#pragma unroll
    for (int k = 0; k < kCopiesAhead; ++k) {
      if (!walk.more()) break;
      units[k] = *share.template In<const Bits>(src, walk.unit());
      to[k] = share.template In<Bits>(dst, walk.unit());
      walk.Next();
      n = k + 1;
    }
#pragma unroll
    for (int k = 0; k < kCopiesAhead; ++k) {
      if (k < n) *to[k] = units[k];
    }
  }
}

template <typename Share>
__device__ void CopyBySize(const Share& share) {
  switch (share.part.unit_bytes) {
    case 1:
      return CopyUnits<uint8_t>(share);
    case 2:
      return CopyUnits<uint16_t>(share);
    case 4:
      return CopyUnits<uint32_t>(share);
    case 8:
      return CopyUnits<uint64_t>(share);
    default:
      return CopyUnits<Pack<uint64_t, 2>>(share);
  }
}

// Tile by tile through shared memory: neighbouring threads read neighbours of the source, and write
// neighbours of the destination. A tile's rows there are one element apart, for the banks' sake.
constexpr int kPitch = kTile + 1;
template <typename Bits, typename Share>
__device__ void CopyTiles(const Share& share, Bits* tile) {
  const Plane plane = PlaneOf(share.words, share.part);
  const int x = threadIdx.x % kTile;
  for (auto t = share.block; t < share.n(); t += share.blocks()) {
    const auto unit = share.At(t);
    const int64_t rows = plane.rows - static_cast<int64_t>(unit.inner[0]) * kTile;
    const int64_t columns = plane.columns - static_cast<int64_t>(unit.inner[1]) * kTile;
    const auto* const from = share.template In<const std::byte>(share.Of(1), unit);
    auto* const to = share.template In<std::byte>(share.Of(0), unit);
    for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile) {
      if (y >= columns || x >= rows) continue;
      tile[y * kPitch + x] = reinterpret_cast<const Bits*>(from + y * plane.column_src)[x];
    }
    __syncthreads();
    for (int y = threadIdx.x / kTile; y < kTile; y += kThreads / kTile) {
      if (y >= rows || x >= columns) continue;
      reinterpret_cast<Bits*>(to + y * plane.row_dst)[x] = tile[x * kPitch + y];
    }
    __syncthreads();
  }
}

// The same in packs on both sides. A thread turns a square in its registers. In each row of the
// tile packs are swapped as the row's square says: those of a column, which are written at once,
// are in different banks.
template <typename Bits, typename Share>
__device__ void CopyPackedTiles(const Share& share, std::byte* memory) {
  constexpr int V = TurnedPack(sizeof(Bits));
  using Row = Pack<Bits, V>;
  auto* const tile = reinterpret_cast<Row*>(memory);
  const Plane plane = PlaneOf(share.words, share.part);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  for (auto t = share.block; t < share.n(); t += share.blocks()) {
    const auto unit = share.At(t);
    const int64_t rows = plane.rows - static_cast<int64_t>(unit.inner[0]) * (kSide * V);
    const int64_t columns = plane.columns - static_cast<int64_t>(unit.inner[1]) * (kSide * V);
    if (y * V < columns && x * V < rows) {
      const auto* const from =
          share.template In<const std::byte>(share.Of(1), unit) + y * V * plane.column_src;
      Row square[V];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        square[k] = reinterpret_cast<const Row*>(from + k * plane.column_src)[x];
      }
#pragma unroll
      for (int k = 0; k < V; ++k) {
        Row turned;
#pragma unroll
        for (int v = 0; v < V; ++v) turned.at[v] = square[v].at[k];
        tile[(x * V + k) * kSide + (y ^ x)] = turned;
      }
    }
    __syncthreads();
    if (y * V < rows && x * V < columns) {
      auto* const to = share.template In<std::byte>(share.Of(0), unit) + y * V * plane.row_dst;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        reinterpret_cast<Row*>(to + k * plane.row_dst)[x] = tile[(y * V + k) * kSide + (x ^ y)];
      }
    }
    __syncthreads();
  }
}

template <typename Bits, typename Share>
__device__ void Transpose(const Share& share, std::byte* tile) {
  if (share.part.packed) return CopyPackedTiles<Bits>(share, tile);
  CopyTiles(share, reinterpret_cast<Bits*>(tile));
}

template <typename Share>
__device__ void TransposeBySize(const Share& share) {
  using Pack16 = Pack<uint64_t, 2>;
  constexpr int kPacks = kThreads * TurnedPack(sizeof(uint16_t));  // the largest tile is theirs
  static_assert(sizeof(Pack16) * kPacks >= sizeof(uint64_t) * kTile * kPitch);
  DT_SHARED(Pack16, tile, kPacks);
  auto* const bytes = reinterpret_cast<std::byte*>(tile);
  switch (share.part.unit_bytes) {
    case 1:
      return Transpose<uint8_t>(share, bytes);
    case 2:
      return Transpose<uint16_t>(share, bytes);
    case 4:
      return Transpose<uint32_t>(share, bytes);
    default:
      return Transpose<uint64_t>(share, bytes);
  }
}

// Calls reduce(f) with how two terms are combined. Of bools there are only kMax and kMin.
template <typename C, typename ReduceFn>
__device__ void WithReduceOp(ReduceOp op, ReduceFn reduce) {
  if (op == ReduceOp::kMax) return reduce([](C a, C b) { return Larger(a, b); });
  if (op == ReduceOp::kMin) return reduce([](C a, C b) { return Smaller(a, b); });
  if constexpr (!std::is_same_v<C, bool>) {
    if (op == ReduceOp::kProduct) return reduce([](C a, C b) { return Multiply(a, b); });
    reduce([](C a, C b) { return Add(a, b); });
  }
}

// Floats are scaled, and rounded to the type of the destination.
template <typename Out, typename C, int V>
__device__ void StoreAs(Out, double scale, const C (&terms)[V], std::byte* to) {
  Pack<Out, V> out;
  for (int v = 0; v < V; ++v) {
    if constexpr (std::is_floating_point_v<C>) {
      out.at[v] = Round<Out>(terms[v] * static_cast<C>(scale));
    } else {
      out.at[v] = terms[v];
    }
  }
  *reinterpret_cast<Pack<Out, V>*>(to) = out;
}
template <typename C, int V>
__device__ void Store(const BoxPart& part, const C (&terms)[V], std::byte* to) {
  if constexpr (std::is_same_v<C, float>) {
    if (part.out == DType::kBF16) return StoreAs(BFloat16{}, part.scale, terms, to);
    if (part.out == DType::kF16) return StoreAs(Float16{}, part.scale, terms, to);
  }
  if constexpr (V * sizeof(C) <= 16) StoreAs(C{}, part.scale, terms, to);
}

// V neighbours at once. The destination may be one of the sources: it is written last.
template <typename In, int V, typename Share>
__device__ void ReduceUnits(const Share& share) {
  const int end = share.part.operands;
  for (auto walk = share.Units(); walk.more(); walk.Next()) {
    Compute<In> terms[V];
    for (int first = 1; first < end; first += kTermsAhead) {
      Pack<In, V> next[kTermsAhead];
#pragma unroll
      for (int k = 0; k < kTermsAhead; ++k) {
        if (first + k >= end) break;
        next[k] = *share.template In<const Pack<In, V>>(share.Of(first + k), walk.unit());
      }
#pragma unroll
      for (int k = 0; k < kTermsAhead; ++k) {
        if (first + k >= end) break;
        if (first + k == 1) {
          for (int v = 0; v < V; ++v) terms[v] = Widen(next[k].at[v]);
          continue;
        }
        WithReduceOp<Compute<In>>(share.part.op, [&](auto f) {
          for (int v = 0; v < V; ++v) terms[v] = f(terms[v], Widen(next[k].at[v]));
        });
      }
    }
    Store(share.part, terms, share.template In<std::byte>(share.Of(0), walk.unit()));
  }
}

template <typename In, typename Share>
__device__ void ReduceOf(In, const Share& share) {
  constexpr int V = ReducePack(sizeof(In), sizeof(In));
  if (!share.part.packed) return ReduceUnits<In, 1>(share);
  if constexpr (kIsHalf<In>) {
    constexpr int kWidened = ReducePack(sizeof(In), sizeof(float));
    if (share.part.out == DType::kF32) return ReduceUnits<In, kWidened>(share);
  }
  ReduceUnits<In, V>(share);
}

template <typename Share>
__device__ void ReduceByType(const Share& share) {
  switch (share.part.in) {
    case DType::kF32:
      return ReduceOf(float{}, share);
    case DType::kF64:
      return ReduceOf(double{}, share);
    case DType::kBF16:
      return ReduceOf(BFloat16{}, share);
    case DType::kF16:
      return ReduceOf(Float16{}, share);
    case DType::kI32:
      return ReduceOf(int32_t{}, share);
    case DType::kI64:
      return ReduceOf(int64_t{}, share);
    case DType::kBool:
      return ReduceOf(bool{}, share);
  }
}

// All parts at once: each block finds its own. Few boxes are deep: registers and code for those are
// kept out of the others' way.
template <typename Index, bool kDeep>
__global__ void __launch_bounds__(kThreads, kDeep ? 2 : 4)
    MoveKernel(DT_GRID_CONSTANT(BoxParts) parts, DT_GRID_CONSTANT(BoxWords) words) {
  const BoxPart& part = PartOf(parts, blockIdx.x);
  const Share<Index, kDeep> share = {words, part,
                                     static_cast<Index>(blockIdx.x - part.first_block)};
  switch (part.work) {
    case BoxWork::kCopy:
      return CopyBySize(share);
    case BoxWork::kTranspose:
      return TransposeBySize(share);
    case BoxWork::kReduce:
      return ReduceByType(share);
  }
}

absl::Status LaunchTable(Device& device, const char* kernel, const BoxTable& table) {
  if (table.blocks() == 0) return device.failure();
  const auto move = table.is_large()  ? MoveKernel<uint64_t, true>
                    : table.is_deep() ? MoveKernel<uint32_t, true>
                                      : MoveKernel<uint32_t, false>;
  return WithList<kNearParts>(device, kernel, table.parts(), [&](const BoxParts& parts) {
    return WithList<kNearWords>(device, kernel, table.words(), [&](const BoxWords& words) {
      return Launch(device, kernel, static_cast<unsigned>(table.blocks()), kThreads, move, parts,
                    words);
    });
  });
}

template <typename T>
__global__ void FillKernel(T* out, T value, int64_t n) {
  ForEachPiece(n, [&](int64_t i) { out[i] = value; });
}

}  // namespace

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args) {
  BoxTable table;
  if (!args.loop.in_place()) table.AddCopy(args.loop);
  return LaunchTable(device, kernel, table);
}

absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args) {
  BoxTable table;
  for (size_t i = 0; i < args.moves.size(); ++i) {
    const BoxMove& move = args.moves[(args.first + i) % args.moves.size()];
    if (move.is_done()) continue;
    if (move.copies()) {
      table.AddCopy(move.loop);
    } else {
      table.AddReduction(move);
    }
  }
  return LaunchTable(device, kernel, table);
}

absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    using T = decltype(t);
    return Launch(device, kernel, BlocksFor(args.n), kThreads, FillKernel<T>,
                  static_cast<T*>(args.out), IdentityOf<T>(args.op), args.n);
  });
}

}  // namespace dtensor::kernels::cuda
