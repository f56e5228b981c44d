// The largest element of a row, and the sum of exp(x - max), for softmax and cross-entropy.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/pack_words-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

template <typename C>
constexpr C kLowest = -std::numeric_limits<C>::infinity();

// exp(x - max) added up over the elements so far; if that is wanted, also their number and the sum
// of x - max, which keeps its precision whatever all elements have in common.
template <typename C>
struct RunningStats {
  C max = kLowest<C>, sum_exp = 0, count = 0, below_max = 0;

  // The number to subtract: exp(-inf) is 0, whatever the largest is, except for -inf - -inf.
  static __device__ C Base(C max) { return max == kLowest<C> ? C{0} : max; }
  __device__ void Rescale(C larger) {
    if (larger != max) sum_exp *= exp(max - Base(larger));
    if (count > 0) below_max += count * (Base(max) - Base(larger));
    max = larger;
  }
};

// The larger one; ignores NaN.
template <typename C>
__device__ C LargerNumber(C a, C b) {
  return fmax(a, b);
}

// exp(x), where x is an element of type T minus its row's largest, or minus the row's log-sum-exp.
// Elements of 16 bits, and so the results, are a thousand times as coarse as QuickExp2, and x is
// nearly exact: rounding x log2 e costs |x| 2^-24, where exp(x) is small. It has a third of exp's
// instructions, for which there is no time at a memory rate of 2 bytes per element.
template <typename T>
__device__ Compute<T> ExpOfShifted(Compute<T> x) {
  if constexpr (kIsHalf<T>) {
    return QuickExp2(x * 1.44269504088896f);
  } else {
    return exp(x);
  }
}

#ifdef __CUDACC__
// For two pairs of 16 bits each. Ignores NaN.
template <typename T>
__device__ uint32_t LargerPair(uint32_t a, uint32_t b) {
  uint32_t larger;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}
#endif

// The largest of a pack and of `larger`, which is not NaN.
template <typename T>
__device__ Compute<T> LargerOf(Compute<T> larger, const Words<T>& words) {
#ifdef __CUDACC__
  if constexpr (kIsHalf<T>) {
    const uint32_t pair = LargerPair<T>(LargerPair<T>(words.at[0], words.at[1]),
                                        LargerPair<T>(words.at[2], words.at[3]));
    const auto two = std::bit_cast<Pack<T, 2>>(pair);
    return LargerNumber(larger, LargerNumber(Widen(two.at[0]), Widen(two.at[1])));
  } else
#endif
  {
    for (const Compute<T> x : WidenPack(words).at) larger = LargerNumber(larger, x);
    return larger;
  }
}

template <typename T>
__device__ Compute<T> SumOfExps(const Words<T>& words, Compute<T> base) {
  Compute<T> sum = 0;
  for (const Compute<T> x : WidenPack(words).at) sum += ExpOfShifted<T>(x - base);
  return sum;
}

// The packs of a part of a row, kPacks for each lane of a group: up to kElements elements from
// `begin` on. If packs are whole, a lane loads all of them before it needs any, and keeps them;
// otherwise it reads each pack when it is needed, with -inf beyond the end of the row. Which packs
// belong to a lane, and their order, do not depend on strides and addresses: the same row gives the
// same bits.
template <typename T, int kLanes, int kPacks>
struct RowPart {
  static constexpr int V = kPack<T>, kElements = kLanes * kPacks * V;

  // They do not count as whole if that is not true of the output (`out_fits`).
  __device__ RowPart(const RowInput<T>& x, int64_t begin, int lane, bool out_fits)
      : from(x.row + begin * x.stride),
        stride(x.stride),
        n(static_cast<int>(Lesser(x.n - begin, kElements))),
        lane(lane),
        whole(x.fits && out_fits && n % V == 0) {
    if (!whole) return;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (IndexOf(k) < n) kept[k] = *reinterpret_cast<const Words<T>*>(from + IndexOf(k));
    }
  }

  __device__ int IndexOf(int k) const { return (k * kLanes + lane) * V; }
  // Calls fn(k, words, i) for the packs that a lane keeps, from element i of the part on; k is a
  // constant to the compiler.
  template <typename Fn>
  __device__ void ForEachKept(Fn fn) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (IndexOf(k) < n) fn(k, kept[k], IndexOf(k));
    }
  }
  // Calls fn(words, i, whole), where `whole` is a constant.
  template <typename Fn>
  __device__ void ForEach(Fn fn) const {
    if (whole) {
      ForEachKept([&](int, const Words<T>& words, int i) { fn(words, i, std::true_type()); });
      return;
    }
    const T lowest = Round<T>(kLowest<Compute<T>>);
#pragma unroll 1
    for (int k = 0; k < kPacks && IndexOf(k) < n; ++k) {
      const int i = IndexOf(k);
      fn(std::bit_cast<Words<T>>(LoadPack<V>(from, stride, false, i, n, lowest)), i,
         std::false_type());
    }
  }

  const T* from;
  int64_t stride;
  int n, lane;
  bool whole;
  Words<T> kept[kPacks];
};

// Calls fn(begin, part) for the parts of a row.
template <typename T, int kLanes, int kPacks, typename Fn>
__device__ void ForEachPart(const RowInput<T>& x, int lane, bool out_fits, Fn fn) {
  using Part = RowPart<T, kLanes, kPacks>;
  for (int64_t begin = 0; begin < x.n; begin += Part::kElements) {
    fn(begin, Part(x, begin, lane, out_fits));
  }
}

template <typename T, int V>
__device__ void StoreTo(const RowOutput<T>& out, int64_t i, const Pack<T, V>& pack, bool whole) {
  whole ? out.StoreWhole(i, pack) : out.Store(i, pack);
}

template <typename T, int kLanes, int kPacks>
__device__ Compute<T> LargestOf(const RowPart<T, kLanes, kPacks>& part, Compute<T> larger) {
  part.ForEach([&](const auto& words, int, auto) { larger = LargerOf(larger, words); });
  return larger;
}

// For a lane's elements of a row. The largest of several packs is found first: so each element
// needs one exp, and the sum is rescaled once per part, not per element.
template <typename T, int kLanes>
__device__ RunningStats<Compute<T>> StatsOfLane(const RowInput<T>& x, int lane, bool with_sum) {
  using C = Compute<T>;
  constexpr int kPacks = kLanes == kWarp ? 4 : 8;
  RunningStats<C> stats;
  ForEachPart<T, kLanes, kPacks>(x, lane, true, [&](int64_t, const auto& part) {
    stats.Rescale(LargestOf(part, stats.max));
    const C base = stats.Base(stats.max);
    part.ForEach([&](const auto& words, int, auto) { stats.sum_exp += SumOfExps(words, base); });
    if (!with_sum) return;
    part.ForEach([&](const auto& words, int i, auto) {
      const WidePack<T> wide = WidenPack(words);
      for (int v = 0; v < kPack<T>; ++v) {
        if (i + v >= part.n) break;
        stats.below_max += wide.at[v] - base;
        stats.count += 1;
      }
    });
  });
  return stats;
}

template <int kLanes, typename C>
__device__ C LargestOfLanes(C max) {
  return FoldLanes<kLanes>(max, [](C a, C b) { return LargerNumber(a, b); });
}

// Every lane gets the merged statistics.
template <int kLanes, typename C>
__device__ void MergeLanes(bool with_sum, RunningStats<C>& stats) {
  const auto add = [](C a, C b) { return a + b; };
  stats.Rescale(LargestOfLanes<kLanes>(stats.max));
  stats.sum_exp = FoldLanes<kLanes>(stats.sum_exp, add);
  if (!with_sum) return;
  stats.below_max = FoldLanes<kLanes>(stats.below_max, add);
  stats.count = FoldLanes<kLanes>(stats.count, add);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_SUM_EXP_INL_H_
