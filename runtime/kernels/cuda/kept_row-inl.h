// Rows that a group of threads reads once, however often it uses them: each lane keeps its packs in
// registers.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_KEPT_ROW_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_KEPT_ROW_INL_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/pack_words-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// The most packs of a lane: with these a warp keeps 8 KB, and its lanes are so busy that what they
// do once per row, above all folds, costs little.
template <int kLanes>
inline constexpr int kMostKept = kLanes == kWarp ? 16 : 8;

// Row r of operand k; mostly rows are one stride apart.
template <typename T, int kIn>
__device__ RowInput<T> RowAt(const RowOperands<kIn>& rows, int k, int64_t r) {
  if (rows.loop.ndim() != 1) return RowInput<T>(rows, k, r);
  const int64_t at = r * rows.loop.stride(0, k);
  return RowInput<T>(rows.in[k] + at * static_cast<int64_t>(sizeof(T)), rows.stride[k], rows.n);
}

// This lane's packs of a row: the same elements in the same order as ForEachPack's. With kPacks > 0
// all are loaded at once, from a row of whole packs, with at most kPacks per lane. With 0, from any
// row, each time that one is needed.
template <typename T, int kLanes, int kPacks>
class LanePacks {
 public:
  static constexpr int V = kPack<T>;

  __device__ LanePacks(const RowInput<T>& x, int lane) : n_(static_cast<int>(x.n)), lane_(lane) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      packs_[k] = {};
      if (At(k) < n_) packs_[k] = std::bit_cast<Words<T>>(x.LoadWhole(At(k)));
    }
  }

  // Calls fn(i, k, elements, pack): the k-th pack begins at element i, and its first `elements`
  // elements belong to the row; zeros follow.
  template <typename Fn>
  __device__ void ForEach(Fn fn) const {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (At(k) < n_) fn(int64_t{At(k)}, k, V, WidenPack<T>(packs_[k]));
    }
  }

 private:
  __device__ int At(int k) const { return (k * kLanes + lane_) * V; }

  int n_, lane_;
  Words<T> packs_[kPacks];
};

template <typename T, int kLanes>
class LanePacks<T, kLanes, 0> {
 public:
  static constexpr int V = kPack<T>;

  __device__ LanePacks(const RowInput<T>& x, int lane) : x_(x), lane_(lane) {}

  template <typename Fn>
  __device__ void ForEach(Fn fn) const {
    int k = 0;
    ForEachPack<T, kLanes>(x_.n, lane_, [&](int64_t i) {
      const auto pack = WidenPack<T>(std::bit_cast<Words<T>>(x_.Load(i)));
      fn(i, k++, static_cast<int>(Lesser(V, x_.n - i)), pack);
    });
  }

 private:
  RowInput<T> x_;
  int lane_;
};

// The pack of a row from element i on; kWhole if the row is known to have whole packs.
template <bool kWhole, typename T>
__device__ WidePack<T> LoadWide(const RowInput<T>& row, int64_t i) {
  return WidenPack<T>(std::bit_cast<Words<T>>(kWhole ? row.LoadWhole(i) : row.Load(i)));
}

// Writes y from element i on, in a pack of a row of LanePacks, with rounded values.
template <int kPacks, typename T>
__device__ void StoreBeside(const RowOutput<T>& y, int64_t i, const WidePack<T>& values) {
  Pack<T, kPack<T>> pack;
  for (int v = 0; v < kPack<T>; ++v) pack.at[v] = Round<T>(values.at[v]);
  if constexpr (kPacks > 0) {
    y.StoreWhole(i, pack);
  } else {
    y.Store(i, pack);
  }
}

// The number of blocks for which an SM must have registers, so that its threads together have
// enough loads in flight.
template <int kPacks>
inline constexpr int kKeptBlocks = kPacks == 4 ? 4 : 2;

// Calls fn(lanes, packs) with constants: a warp or a block per row, and as many packs as a lane
// keeps of `whole` packs of n elements, or 0. `lanes` depends on n and T alone.
template <typename T, int kLanes = kWarp, int kPacks = 4, typename Fn>
absl::Status WithKeptPacks(int64_t n, bool whole, Fn fn) {
  constexpr std::integral_constant<int, kLanes> kOf;
  if (whole && n <= int64_t{kPacks} * kLanes * kPack<T>) {
    return fn(kOf, std::integral_constant<int, kPacks>());
  }
  if constexpr (kPacks < kMostKept<kLanes>) {
    return WithKeptPacks<T, kLanes, kPacks * 2>(n, whole, fn);
  } else if constexpr (kLanes == kWarp) {
    if (n > int64_t{kPacks} * kLanes * kPack<T>) return WithKeptPacks<T, kThreads>(n, whole, fn);
  }
  return fn(kOf, std::integral_constant<int, 0>());
}

// Whether a vector used with the rows, or the row-major result, has whole packs if the rows have.
template <typename T>
bool FitsKept(const StridedInput& vector) {
  return FitsPacks<kPack<T>>(reinterpret_cast<const T*>(vector.data), vector.loop, 0);
}
template <typename T>
bool FitsKept(const void* result) {
  return FitsPacks<kPack<T>>(static_cast<const T*>(result), 1);
}

// As LaunchRowKernel, for make(T{}, lanes, packs), a kernel whose rows are LanePacks. fits(T{})
// returns whether everything that it reads and writes besides args.rows has whole packs.
template <typename Args, typename Fits, typename Make>
absl::Status LaunchKeptRows(Device& device, const char* name, const Args& args, Fits fits,
                            Make make) {
  const int64_t rows = ElementsOf(args.rows.loop);
  if (rows == 0) return device.failure();
  return VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    const bool whole = HasWholePacks<T>(args.rows) && fits(t);
    return WithKeptPacks<T>(args.rows.n, whole, [&](auto lanes, auto packs) {
      void (*const kernel)(Args, int64_t) = make(t, lanes, packs);
      return Launch(device, name, BlocksForRows<lanes>(rows), kThreads, kernel, args, rows);
    });
  });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_KEPT_ROW_INL_H_
