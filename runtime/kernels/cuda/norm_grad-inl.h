// The parts that the gradients of RMSNorm and LayerNorm share.
//
// A norm provides a type Norm<T> for one row, constructed from the kernel's arguments and the row's
// number, and also EvenRow() if HasContiguousStatistics(args). Values are in Compute<T>; g = dy *
// weight.
//
//   Sums               what is summed up over the row; two of them can be added
//   Add(x, g, sums)    adds an element's share to them
//   OfShards(args, r)  the sums of a row over all shards
//   Take(sums, total)  keeps what Dx needs of them; total: a row's elements on all shards
//   Dx(x, g)           the gradient of x
//   kParameters        how many parameters' gradients are sums over rows
//   AddParameter(k, x, dy, sum)  adds an element's share of the k-th
//
// The arguments have rows (x, dy), weight, stats, total and dx. dx may be x's or dy's own memory:
// every thread reads what it needs of an element before it writes there.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_NORM_GRAD_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_NORM_GRAD_INL_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cuda/column_sums-inl.h"
#include "dtensor/runtime/kernels/cuda/kept_row-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

struct EvenRow {};  // for a Norm with contiguous statistics

// The operands of one row.
template <typename T>
struct GradRow {
  template <typename Args>
  __device__ GradRow(const Args& a, int64_t r)
      : x(RowAt<T>(a.rows, 0, r)), dy(RowAt<T>(a.rows, 1, r)), weight(a.weight, a.rows.n) {}

  RowInput<T> x, dy, weight;
};

namespace internal {

template <typename Norm, typename T>
__device__ void AddTerms(const Norm& norm, const WidePack<T>& x, const WidePack<T>& dy,
                         const WidePack<T>& weight, typename Norm::Sums& sums) {
  for (int v = 0; v < kPack<T>; ++v) {
    norm.Add(x.at[v], dy.at[v] * weight.at[v], sums);
  }
}

template <typename Norm, typename T>
__device__ Pack<T, kPack<T>> DxOf(const Norm& norm, const WidePack<T>& x, const WidePack<T>& dy,
                                  const WidePack<T>& weight) {
  Pack<T, kPack<T>> dx;
  for (int v = 0; v < kPack<T>; ++v) {
    dx.at[v] = Round<T>(norm.Dx(x.at[v], dy.at[v] * weight.at[v]));
  }
  return dx;
}

template <typename Norm, typename T>
__device__ void AddParameters(const Norm& norm, const WidePack<T>& x, const WidePack<T>& dy,
                              ColumnTerms<T, Norm::kParameters>& sums) {
  for (int k = 0; k < Norm::kParameters; ++k) {
    for (int v = 0; v < kPack<T>; ++v) norm.AddParameter(k, x.at[v], dy.at[v], sums.at[k][v]);
  }
}

}  // namespace internal

// The sums of a row, in all lanes of its group.
template <int kLanes, typename Norm, typename T>
__device__ typename Norm::Sums SumsOfRow(const Norm& norm, const GradRow<T>& row, int lane) {
  typename Norm::Sums sums = {};
  ForEachPack<T, kLanes>(row.x.n, lane, [&](int64_t i) {
    internal::AddTerms<Norm, T>(norm, LoadWide<false>(row.x, i), LoadWide<false>(row.dy, i),
                                LoadWide<false>(row.weight, i), sums);
  });
  return SumLanes<kLanes>(sums);
}

namespace internal {

// --- In two passes, for any rows: SumColumns, and then dx.

template <typename Norm, typename T, typename Args>
struct ParameterTerms {
  Args args;
  __device__ void operator()(int64_t r, int64_t column,
                             ColumnTerms<T, Norm::kParameters>& sums) const {
    AddParameters<Norm, T>(Norm(args, r), LoadWide<false>(RowAt<T>(args.rows, 0, r), column),
                           LoadWide<false>(RowAt<T>(args.rows, 1, r), column), sums);
  }
};

template <typename Norm, typename T, int kLanes, typename Args>
__global__ void DxKernel(const __grid_constant__ Args a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const GradRow<T> row(a, r);
    Norm norm(a, r);
    norm.Take(a.stats.shards == 0 ? SumsOfRow<kLanes>(norm, row, lane) : Norm::OfShards(a.stats, r),
              static_cast<Compute<T>>(a.total));
    const RowOutput<T> dx(a.dx, a.rows.n, r);
    ForEachPack<T, kLanes>(a.rows.n, lane, [&](int64_t i) {
      dx.Store(i, DxOf<Norm, T>(norm, LoadWide<false>(row.x, i), LoadWide<false>(row.dy, i),
                                LoadWide<false>(row.weight, i)));
    });
  });
}

// --- In one pass, which reads x and dy once: for long rows of whole packs. One block per part of
// the rows; its threads keep their packs of a row, and the sums of their own columns, in registers.
// All sums are computed in the order of the two passes, so the results have the same bits.

// The most columns of a thread: registers have no room for what it keeps for more.
template <typename T>
inline constexpr int kMostColumns = sizeof(T) > sizeof(float) ? 16 : 32;

// Calls fn(k, i) for the packs of this thread, from element i on; k is a constant to the compiler.
template <typename T, int kPacks, typename Fn>
__device__ void ForEachOwnPack(int64_t n, Fn fn) {
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int64_t i = (int64_t{k} * kThreads + threadIdx.x) * kPack<T>;
    if (i < n) fn(k, i);
  }
}

// What a thread keeps of a row: its packs of x and dy, and what the norm needs. kEven: rows are one
// stride apart and statistics contiguous (IsEven). It is a template parameter so that a loop over
// such rows contains no code for others, which would be most of it.
template <typename Norm, typename T, int kPacks, bool kEven>
struct OwnOfRow {
  template <typename Args>
  __device__ OwnOfRow(const Args& a, int64_t r) : norm(NormOf(a, r)) {
    const T *const of_x = RowOf(a.rows, 0, r), *const of_dy = RowOf(a.rows, 1, r);
    ForEachOwnPack<T, kPacks>(a.rows.n, [&](int k, int64_t i) {
      x[k] = *reinterpret_cast<const Words<T>*>(of_x + i);
      dy[k] = *reinterpret_cast<const Words<T>*>(of_dy + i);
    });
  }

  template <typename Args>
  __device__ static Norm NormOf(const Args& a, int64_t r) {
    if constexpr (kEven) return Norm(a, r, EvenRow());
    return Norm(a, r);
  }
  __device__ static const T* RowOf(const RowOperands<2>& rows, int k, int64_t r) {
    if constexpr (!kEven) return RowAt<T>(rows, k, r).row;
    return reinterpret_cast<const T*>(rows.in[k]) + r * rows.loop.stride(0, k);
  }

  Norm norm;
  Words<T> x[kPacks] = {}, dy[kPacks] = {};
};

// Whether registers also hold the next row, which is then loaded while this one is computed.
template <typename Norm, typename T, int kPacks>
constexpr bool ReadsAhead() {
  constexpr size_t kRow = sizeof(OwnOfRow<Norm, T, kPacks, true>);
  constexpr size_t kSums = kPacks * sizeof(ColumnTerms<T, Norm::kParameters>);
  return 2 * kRow + kSums <= 144 * sizeof(uint32_t);
}

// As SumLanes over a block, with one barrier: calls alternate between two pieces of memory, so a
// thread that writes to one again has met all others at the barrier of the other. `call` counts
// them.
template <typename Sums>
__device__ Sums SumBlock(Sums sums, int64_t call) {
  constexpr int kWarps = kThreads / kWarp;
  DT_SHARED(Sums, warps, 2 * kWarps);
  sums = SumLanes<kWarp>(sums);
  Sums* const of_call = warps + (call & 1) * kWarps;
  if (threadIdx.x % kWarp == 0) of_call[threadIdx.x / kWarp] = sums;
  __syncthreads();
  sums = of_call[0];
  for (int w = 1; w < kWarps; ++w) sums = sums + of_call[w];
  return sums;
}

// Computes dx of a row, and adds to `sums`, for each of this thread's packs.
template <typename Norm, typename T, int kPacks, bool kEven, typename Args>
__device__ void GradOfRow(const Args& a, int64_t r, const OwnOfRow<Norm, T, kPacks, kEven>& own,
                          const Words<T> (&weight)[kPacks],
                          ColumnTerms<T, Norm::kParameters> (&sums)[kPacks]) {
  const int64_t n = a.rows.n;
  Norm norm = own.norm;
  typename Norm::Sums of_row = {};
  ForEachOwnPack<T, kPacks>(n, [&](int k, int64_t) {
    AddTerms<Norm, T>(norm, WidenPack<T>(own.x[k]), WidenPack<T>(own.dy[k]),
                      WidenPack<T>(weight[k]), of_row);
  });
  norm.Take(a.stats.shards == 0 ? SumBlock(of_row, r) : Norm::OfShards(a.stats, r),
            static_cast<Compute<T>>(a.total));
  const RowOutput<T> dx(a.dx, n, r);
  ForEachOwnPack<T, kPacks>(n, [&](int k, int64_t i) {
    const WidePack<T> x = WidenPack<T>(own.x[k]), dy = WidenPack<T>(own.dy[k]);
    dx.StoreWhole(i, DxOf<Norm, T>(norm, x, dy, WidenPack<T>(weight[k])));
    AddParameters<Norm, T>(norm, x, dy, sums[k]);
  });
}

// The same for the rows [begin, end).
template <typename Norm, typename T, int kPacks, bool kEven, typename Args>
__device__ void GradOfRows(const Args& a, int64_t begin, int64_t end,
                           const Words<T> (&weight)[kPacks],
                           ColumnTerms<T, Norm::kParameters> (&sums)[kPacks]) {
  using Own = OwnOfRow<Norm, T, kPacks, kEven>;
  if constexpr (ReadsAhead<Norm, T, kPacks>()) {
    Own own(a, begin);
    for (int64_t r = begin; r < end; ++r) {
      const Own next(a, Lesser(r + 1, end - 1));  // before dx is written, which may be x's memory
      GradOfRow<Norm, T, kPacks, kEven>(a, r, own, weight, sums);
      own = next;
    }
  } else {
    for (int64_t r = begin; r < end; ++r) {
      GradOfRow<Norm, T, kPacks, kEven>(a, r, Own(a, r), weight, sums);
    }
  }
}

// total = sums, or += if there already are some; for a pack of columns. The sums of the next
// parameter are n further on.
template <typename T, int N>
__device__ void KeepSums(const ColumnTerms<T, N>& sums, bool first, int64_t n, Compute<T>* total) {
  using Columns = Pack<Compute<T>, kPack<T>>;
  for (int k = 0; k < N; ++k) {
    Columns* const at = reinterpret_cast<Columns*>(total + k * n);
    Columns columns = first ? Columns{} : *at;
    for (int v = 0; v < kPack<T>; ++v) columns.at[v] += sums.at[k][v];
    *at = columns;
  }
}

template <typename Norm, typename T, int kPacks, bool kEven, typename Args>
__global__ void __launch_bounds__(kThreads, kPacks <= 2 ? 2 : 1)
    OnePassKernel(const __grid_constant__ Args a, ColumnParts parts, Compute<T>* partial) {
  constexpr int N = Norm::kParameters;
  const int64_t n = a.rows.n, p = blockIdx.x;
  const RowInput<T> of_weight(a.weight, n);
  Words<T> weight[kPacks] = {};
  ForEachOwnPack<T, kPacks>(
      n, [&](int k, int64_t i) { weight[k] = std::bit_cast<Words<T>>(of_weight.LoadWhole(i)); });
  ForEachColumnBlock(parts, p, [&](int64_t begin, int64_t end) {
    ColumnTerms<T, N> sums[kPacks] = {};
    GradOfRows<Norm, T, kPacks, kEven>(a, begin, end, weight, sums);
    ForEachOwnPack<T, kPacks>(n, [&](int k, int64_t i) {
      KeepSums<T, N>(sums[k], begin == p * parts.part, n, partial + p * N * n + i);
    });
  });
}

template <typename T, typename Args>
bool FitsOnePass(const Args& a) {
  constexpr int V = kPack<T>;
  return a.rows.n > kMostOfAWarp && a.rows.n <= kMostColumns<T> * kThreads &&
         HasWholePacks<T>(a.rows) &&
         FitsPacks<V>(reinterpret_cast<const T*>(a.weight.data), a.weight.loop, 0) &&
         FitsPacks<V>(static_cast<const T*>(a.dx), 1);
}

// Whether rows meet the conditions of OwnOfRow's kEven.
template <typename Norm, typename Args>
bool IsEven(const Args& a) {
  return a.rows.loop.ndim() == 1 && Norm::HasContiguousStatistics(a);
}

// Calls fn(packs); `packs`, a constant, is how many a thread needs for rows of n elements.
template <typename T, int kColumns = 8, typename Fn>
absl::Status WithPacks(int64_t n, Fn fn) {
  if constexpr (kColumns < kMostColumns<T>) {
    if (n > kColumns * kThreads) return WithPacks<T, kColumns * 2>(n, fn);
  }
  return fn(std::integral_constant<int, kColumns / kPack<T>>());
}

template <typename Norm, typename T, int N, typename Args>
absl::Status OnePass(Device& device, const char* name, const Args& a, int64_t rows,
                     const ColumnOutputs<T, N>& out) {
  const ColumnParts parts = ColumnPartsOf<T, N>(rows, a.rows.n);
  auto* const partial = static_cast<Compute<T>*>(CudaScratchOf(device));
  DT_RETURN_IF_ERROR(WithPacks<T>(a.rows.n, [&](auto packs) {
    return Launch(device, name, static_cast<unsigned>(parts.parts), kThreads,
                  IsEven<Norm>(a) ? OnePassKernel<Norm, T, packs, true, Args>
                                  : OnePassKernel<Norm, T, packs, false, Args>,
                  a, parts, partial);
  }));
  return AddColumnParts<T, N>(device, name, parts.parts, a.rows.n, out);
}

// The parameters come first, since dx may be x's or dy's own memory.
template <typename Norm, typename T, int N, typename Args>
absl::Status TwoPasses(Device& device, const char* name, const Args& a, int64_t rows,
                       const ColumnOutputs<T, N>& out) {
  DT_RETURN_IF_ERROR(
      (SumColumns<T, N>(device, name, rows, a.rows.n, ParameterTerms<Norm, T, Args>{a}, out)));
  if (rows == 0) return absl::OkStatus();
  return WithLanes(a.rows.n, [&](auto lanes) {
    return Launch(device, name, BlocksForRows<lanes>(rows), kThreads,
                  DxKernel<Norm, T, lanes, Args>, a, rows);
  });
}

}  // namespace internal

// Computes dx, and writes the gradients that are sums over rows to `parameters`.
template <template <typename> class Norm, size_t N, typename Args>
absl::Status NormGrad(Device& device, const char* name, const Args& a,
                      const std::array<void*, N>& parameters) {
  return VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    static_assert(N == Norm<T>::kParameters);
    constexpr int kOutputs = N;
    ColumnOutputs<T, kOutputs> out;
    for (size_t k = 0; k < N; ++k) out.at[k] = static_cast<T*>(parameters[k]);
    const int64_t rows = ElementsOf(a.rows.loop);
    if (rows > 0 && internal::FitsOnePass<T>(a)) {
      return internal::OnePass<Norm<T>, T, kOutputs>(device, name, a, rows, out);
    }
    return internal::TwoPasses<Norm<T>, T, kOutputs>(device, name, a, rows, out);
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_NORM_GRAD_INL_H_
