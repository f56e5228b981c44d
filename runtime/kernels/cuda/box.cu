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

// A part of the work, and the index of this block among the part's blocks.
template <typename Index, bool kDeep>
struct Share {
  static constexpr bool kIsDeep = kDeep;
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
  // The units (tiles) of this block.
  __device__ Walk Tiles() const {
    return Walk(words, part, block, static_cast<Index>(part.blocks));
  }

  __device__ int64_t Base(int operand) const { return words[part.words + operand]; }
  __device__ BoxOperand Of(int operand) const { return OperandOf(words, part, operand); }
  // The address of a unit in an operand.
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

// Copies tile by tile through shared memory: neighbouring threads read neighbours of the source,
// and write neighbours of the destination. In shared memory there is one element between a tile's
// rows, to avoid bank conflicts.
constexpr int kPitch = kTile + 1;
template <typename Bits, typename Share>
__device__ void CopyTiles(const Share& share, Bits* tile) {
  const Plane plane = PlaneOf(share.words, share.part);
  const auto dst = share.Of(0), src = share.Of(1);
  const int x = threadIdx.x % kTile;
  for (auto walk = share.Tiles(); walk.more(); walk.Next()) {
    const auto& unit = walk.unit();
    const int64_t rows = plane.rows - static_cast<int64_t>(unit.inner[0]) * kTile;
    const int64_t columns = plane.columns - static_cast<int64_t>(unit.inner[1]) * kTile;
    const auto* const from = share.template In<const std::byte>(src, unit);
    auto* const to = share.template In<std::byte>(dst, unit);
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

// The same in packs on both sides. A thread transposes a square in its registers. In each row of
// the tile, packs are permuted depending on the row's square: so those of a column, which are
// written at the same time, are in different banks. While a tile is written the next one is read.
template <typename Bits, typename Share>
__device__ void CopyPackedTiles(const Share& share, std::byte* memory) {
  constexpr int V = TurnedPack(sizeof(Bits));
  using Row = Pack<Bits, V>;
  auto* const tile = reinterpret_cast<Row*>(memory);
  const Plane plane = PlaneOf(share.words, share.part);
  const auto dst = share.Of(0), src = share.Of(1);
  const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  // Whether the square at (row, column) of the tile, in packs, is inside the plane.
  const auto is_inside = [&](const auto& unit, int row, int column) {
    return static_cast<int64_t>(unit.inner[0]) * kSide + row < plane.rows / V &&
           static_cast<int64_t>(unit.inner[1]) * kSide + column < plane.columns / V;
  };
  Row square[V];
  const auto read = [&](const auto& unit) {
    if (!is_inside(unit, x, y)) return;
    const auto* const from =
        share.template In<const std::byte>(src, unit) + y * V * plane.column_src;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      square[k] = reinterpret_cast<const Row*>(from + k * plane.column_src)[x];
    }
  };
  auto walk = share.Tiles();
  if (walk.more()) read(walk.unit());
  while (walk.more()) {
    const auto unit = walk.unit();
    if (is_inside(unit, x, y)) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        Row turned;
#pragma unroll
        for (int v = 0; v < V; ++v) turned.at[v] = square[v].at[k];
        tile[(x * V + k) * kSide + (y ^ x)] = turned;
      }
    }
    __syncthreads();
    walk.Next();
    if (walk.more()) read(walk.unit());
    if (is_inside(unit, y, x)) {
      auto* const to = share.template In<std::byte>(dst, unit) + y * V * plane.row_dst;
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
  constexpr int kPacks = kThreads * TurnedPack(sizeof(uint16_t));  // for the largest tile
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

// Calls reduce(f) with the function that combines two terms. For bools only kMax and kMin occur.
template <typename C, typename ReduceFn>
__device__ void WithReduceOp(ReduceOp op, ReduceFn reduce) {
  if (op == ReduceOp::kMax) return reduce([](C a, C b) { return Larger(a, b); });
  if (op == ReduceOp::kMin) return reduce([](C a, C b) { return Smaller(a, b); });
  if constexpr (!std::is_same_v<C, bool>) {
    if (op == ReduceOp::kProduct) return reduce([](C a, C b) { return Multiply(a, b); });
    reduce([](C a, C b) { return Add(a, b); });
  }
}

// Stores terms; floats are scaled, and rounded to the destination's type.
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

// Reduces V neighbours at a time. The destination may be one of the sources: it is written last.
// kAlike: all sources have the same strides, so that a unit has the same offset in each.
template <typename In, int V, bool kAlike, typename Share>
__device__ void ReduceUnits(const Share& share) {
  using Term = Pack<In, V>;
  const int end = share.part.operands;
  const auto dst = share.Of(0);
  auto steps = share.Of(1);
  steps.base = 0;
  for (auto walk = share.Units(); walk.more(); walk.Next()) {
    const auto offset =
        reinterpret_cast<int64_t>(share.template In<const std::byte>(steps, walk.unit()));
    const auto term = [&](int operand) {
      if (!kAlike) return *share.template In<const Term>(share.Of(operand), walk.unit());
      return *reinterpret_cast<const Term*>(offset + share.Base(operand));
    };
    Compute<In> sums[V];
    for (int first = 1; first < end; first += kTermsAhead) {
      Term next[kTermsAhead];
#pragma unroll
      for (int k = 0; k < kTermsAhead; ++k) {
        if (first + k < end) next[k] = term(first + k);
      }
#pragma unroll
      for (int k = 0; k < kTermsAhead; ++k) {
        if (first + k >= end) break;
        if (first + k == 1) {
          for (int v = 0; v < V; ++v) sums[v] = Widen(next[k].at[v]);
          continue;
        }
        WithReduceOp<Compute<In>>(share.part.op, [&](auto f) {
          for (int v = 0; v < V; ++v) sums[v] = f(sums[v], Widen(next[k].at[v]));
        });
      }
    }
    Store(share.part, sums, share.template In<std::byte>(dst, walk.unit()));
  }
}

// Reduces in packs, which is most of the work.
template <typename In, int V, typename Share>
__device__ void ReducePacks(const Share& share) {
  if constexpr (!Share::kIsDeep) {
    if (share.part.alike) return ReduceUnits<In, V, true>(share);
  }
  ReduceUnits<In, V, false>(share);
}

template <typename In, typename Share>
__device__ void ReduceOf(In, const Share& share) {
  constexpr int V = ReducePack(sizeof(In), sizeof(In));
  if (!share.part.packed) return ReduceUnits<In, 1, false>(share);
  if constexpr (kIsHalf<In>) {
    constexpr int kWidened = ReducePack(sizeof(In), sizeof(float));
    if (share.part.out == DType::kF32) return ReducePacks<In, kWidened>(share);
  }
  ReducePacks<In, V>(share);
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

// Runs all parts in one launch: each block finds its own. Few boxes are deep, so they have their
// own variant, whose registers and code do not burden the others. So have transposes, which need
// many registers and shared memory.
template <typename Index, bool kDeep>
__global__ void __launch_bounds__(kThreads, kDeep ? 2 : 4)
    MoveKernel(DT_GRID_CONSTANT(BoxParts) parts, DT_GRID_CONSTANT(BoxWords) words) {
  const BoxPart& part = PartOf(parts, blockIdx.x);
  const Share<Index, kDeep> share = {words, part,
                                     static_cast<Index>(blockIdx.x - part.first_block)};
  switch (part.work) {
    case BoxWork::kCopy:
      return CopyBySize(share);
    case BoxWork::kReduce:
      return ReduceByType(share);
  }
}
template <bool kDeep>
__global__ void __launch_bounds__(kThreads, 2)
    TransposeKernel(DT_GRID_CONSTANT(BoxParts) parts, DT_GRID_CONSTANT(BoxWords) words) {
  const BoxPart& part = PartOf(parts, blockIdx.x);
  TransposeBySize(
      Share<uint32_t, kDeep>{words, part, static_cast<uint32_t>(blockIdx.x - part.first_block)});
}

using BoxKernel = decltype(&TransposeKernel<false>);

// Calls launch(launch_table) when the table is where its kernel can read it; launch_table launches
// that kernel.
template <typename Fn>
absl::Status WithTable(Device& device, const char* name, const BoxTable& table, BoxKernel kernel,
                       Fn launch) {
  return WithList<kNearParts>(device, name, table.parts(), [&](const BoxParts& parts) {
    return WithList<kNearWords>(device, name, table.words(), [&](const BoxWords& words) {
      return launch([&]() -> absl::Status {
        if (table.blocks() == 0) return device.failure();
        return Launch(device, name, static_cast<unsigned>(table.blocks()), kThreads, kernel, parts,
                      words);
      });
    });
  });
}

// Boxes that move together.
class BoxLaunch {
 public:
  void Add(const BoxLoop& copy) {
    const int across = BoxTable::TransposedLoop(copy);
    if (across < 0) return moves_.AddCopy(copy);
    transposes_.AddTransposed(copy, across);
  }
  void Add(const BoxMove& move) { move.copies() ? Add(move.loop) : moves_.AddReduction(move); }

  // Allocates all memory before the first launch: if there is not enough, nothing runs.
  absl::Status Run(Device& device, const char* name) {
    const BoxKernel move = moves_.is_large()  ? MoveKernel<uint64_t, true>
                           : moves_.is_deep() ? MoveKernel<uint32_t, true>
                                              : MoveKernel<uint32_t, false>;
    const BoxKernel transpose =
        transposes_.is_deep() ? TransposeKernel<true> : TransposeKernel<false>;
    return WithTable(device, name, moves_, move, [&](auto launch_moves) {
      return WithTable(device, name, transposes_, transpose, [&](auto launch_transposes) {
        DT_RETURN_IF_ERROR(launch_moves());
        return launch_transposes();
      });
    });
  }

 private:
  BoxTable moves_, transposes_;
};

template <typename T>
__global__ void FillKernel(T* out, T value, int64_t n) {
  ForEachPiece(n, [&](int64_t i) { out[i] = value; });
}

}  // namespace

absl::Status Copy(Device& device, const char* kernel, const CopyArgs& args) {
  BoxLaunch launch;
  if (!args.loop.in_place()) launch.Add(args.loop);
  return launch.Run(device, kernel);
}

absl::Status MoveBoxes(Device& device, const char* kernel, const MoveBoxesArgs& args) {
  BoxLaunch launch;
  for (size_t i = 0; i < args.moves.size(); ++i) {
    const BoxMove& move = args.moves[(args.first + i) % args.moves.size()];
    if (!move.is_done()) launch.Add(move);
  }
  return launch.Run(device, kernel);
}

absl::Status FillIdentity(Device& device, const char* kernel, const FillIdentityArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    using T = decltype(t);
    return Launch(device, kernel, BlocksFor(args.n), kThreads, FillKernel<T>,
                  static_cast<T*>(args.out), IdentityOf<T>(args.op), args.n);
  });
}

}  // namespace dtensor::kernels::cuda
