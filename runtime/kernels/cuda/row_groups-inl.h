// Rows that are processed by a group of threads: a warp, or a whole block for long ones.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_ROW_GROUPS_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_ROW_GROUPS_INL_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"

namespace dtensor::kernels::cuda {

inline constexpr int kWarp = 32;

// On the GPU: calls fn(row, lane) for the rows of this thread's group of kLanes threads, which have
// lanes 0 to kLanes - 1. Rows are divided among the groups.
template <int kLanes, typename Fn>
__device__ void ForEachRow(int64_t rows, Fn fn) {
  static_assert(kLanes == kWarp || kLanes == kThreads);
  constexpr int kGroups = kThreads / kLanes;
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kGroups;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kGroups + group; row < rows; row += step) {
    fn(row, lane);
  }
}

// The blocks for `rows` > 0 rows, in groups of kLanes.
template <int kLanes>
unsigned BlocksForRows(int64_t rows) {
  constexpr int64_t kGroups = kThreads / kLanes, kMost = 1 << 20;
  return static_cast<unsigned>(std::min((rows + kGroups - 1) / kGroups, kMost));
}

// Launches kernel(args), which processes `rows` > 0 rows in groups of kLanes.
template <int kLanes, typename Args>
absl::Status LaunchRows(Device& device, const char* name, int64_t rows, void (*kernel)(Args),
                        const std::type_identity_t<Args>& args) {
  return Launch(device, name, BlocksForRows<kLanes>(rows), kThreads, kernel, args);
}

inline constexpr int64_t kMostOfAWarp = 1024;  // elements of a row; longer ones get a block

// Calls fn(lanes); `lanes`, a constant, is how many process rows of n elements.
template <typename Fn>
absl::Status WithLanes(int64_t n, Fn fn) {
  if (n <= kMostOfAWarp) return fn(std::integral_constant<int, kWarp>());
  return fn(std::integral_constant<int, kThreads>());
}

// Launches make(T{}, lanes)(args, rows), a kernel for the rows of args.rows of one float type.
template <typename Args, typename Make>
absl::Status LaunchRowKernel(Device& device, const char* name, const Args& args, Make make) {
  const int64_t rows = ElementsOf(args.rows.loop);
  if (rows == 0) return device.failure();
  return VisitFloat(args.dtype, [&](auto t) {
    return WithLanes(args.rows.n, [&](auto lanes) {
      void (*const kernel)(Args, int64_t) = make(t, lanes);
      return Launch(device, name, BlocksForRows<lanes>(rows), kThreads, kernel, args, rows);
    });
  });
}

// The value of the lane of this warp whose number differs from this one's in `bits`. All lanes must
// call it.
template <typename T>
__device__ T OtherLane(T value, int bits) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(0xffffffff, value, bits);
  } else {
    struct Words {
      uint64_t at[sizeof(T) / sizeof(uint64_t)];
    };
    auto words = std::bit_cast<Words>(value);
    for (uint64_t& word : words.at) word = __shfl_xor_sync(0xffffffff, word, bits);
    return std::bit_cast<T>(words);
  }
}

// Combines the values of a group's lanes by f; every lane gets the result. All lanes must call it.
// f must be commutative. A group smaller than a warp begins at a multiple of kLanes, a power of 2.
template <int kLanes, typename T, typename F>
__device__ T FoldLanes(T value, F f) {
  for (int bits = (kLanes < kWarp ? kLanes : kWarp) / 2; bits > 0; bits /= 2) {
    value = f(value, OtherLane(value, bits));
  }
  if constexpr (kLanes > kWarp) {
    DT_SHARED(T, warps, kLanes / kWarp);
    if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = warps[0];
    for (int w = 1; w < kLanes / kWarp; ++w) value = f(value, warps[w]);
    __syncthreads();  // the next fold writes there
  }
  return value;
}

// Whether a row's packs of V elements may be read or written at once.
template <int V, typename T>
__host__ __device__ bool FitsPacks(const T* row, int64_t stride) {
  return stride == 1 && reinterpret_cast<uintptr_t>(row) % sizeof(Pack<T, V>) == 0;
}

// V elements from element i on, of a row of n; `fill` beyond its end.
template <int V, typename T>
__device__ Pack<T, V> LoadPack(const T* row, int64_t stride, bool fits, int64_t i, int64_t n,
                               T fill) {
  if (fits && i + V <= n) return *reinterpret_cast<const Pack<T, V>*>(row + i);
  Pack<T, V> pack;
  for (int v = 0; v < V; ++v) pack.at[v] = i + v < n ? row[(i + v) * stride] : fill;
  return pack;
}

// Writes those of them that are within the row, of contiguous elements.
template <int V, typename T>
__device__ void StorePack(const Pack<T, V>& pack, T* row, bool fits, int64_t i, int64_t n) {
  if (fits && i + V <= n) {
    *reinterpret_cast<Pack<T, V>*>(row + i) = pack;
    return;
  }
  for (int v = 0; v < V && i + v < n; ++v) row[i + v] = pack.at[v];
}

// Elements of a row that are read and written at once.
template <typename T>
inline constexpr int kPack = 16 / sizeof(T);

// Whether all rows of all operands have whole packs, and are aligned for them.
template <typename T, int kIn>
bool HasWholePacks(const RowOperands<kIn>& rows) {
  constexpr int V = kPack<T>;
  bool whole = rows.n % V == 0;
  for (int k = 0; k < kIn; ++k) {
    whole = whole && FitsPacks<V>(reinterpret_cast<const T*>(rows.in[k]), rows.stride[k]);
    for (int d = 0; d < rows.loop.ndim(); ++d) whole = whole && rows.loop.stride(d, k) % V == 0;
  }
  return whole;
}

// How many of n units are in each of `parts` parts; the last parts may be shorter.
inline int64_t PartOf(int64_t n, int64_t parts, int64_t unit) {
  return (n + parts * unit - 1) / (parts * unit) * unit;
}

// On the GPU: calls fn(i) for this lane's packs of a row of n elements. The division does not
// depend on strides and addresses, so a row's sums have the same bits.
template <typename T, int kLanes, typename Fn>
__device__ void ForEachPack(int64_t n, int lane, Fn fn) {
  for (int64_t i = int64_t{lane} * kPack<T>; i < n; i += int64_t{kLanes} * kPack<T>) fn(i);
}

// A row of elements that is read in packs; zeros beyond its end.
template <typename T>
struct RowInput {
  __device__ RowInput(const std::byte* data, int64_t stride, int64_t n)
      : row(reinterpret_cast<const T*>(data)),
        stride(stride),
        n(n),
        fits(FitsPacks<kPack<T>>(row, stride)) {}
  // Operand k of row r.
  template <int kIn>
  __device__ RowInput(const RowOperands<kIn>& rows, int k, int64_t r)
      : RowInput(rows.in[k] + OffsetsOf(rows.loop, static_cast<uint64_t>(r)).at[k] *
                                  static_cast<int64_t>(sizeof(T)),
                 rows.stride[k], rows.n) {}
  // A vector, as one row.
  __device__ RowInput(const StridedInput& input, int64_t n)
      : RowInput(input.data, input.loop.inner_stride(0), n) {}

  __device__ Pack<T, kPack<T>> Load(int64_t i) const {
    return LoadPack<kPack<T>>(row, stride, fits, i, n, T{});
  }
  // For rows that are known to have whole packs.
  __device__ Pack<T, kPack<T>> LoadWhole(int64_t i) const {
    return *reinterpret_cast<const Pack<T, kPack<T>>*>(row + i);
  }

  const T* row;
  int64_t stride, n;
  bool fits;
};

// A row that is written.
template <typename T>
struct RowOutput {
  __device__ RowOutput(void* data, int64_t n, int64_t r)
      : row(static_cast<T*>(data) + r * n), n(n), fits(FitsPacks<kPack<T>>(row, 1)) {}

  __device__ void Store(int64_t i, const Pack<T, kPack<T>>& pack) const {
    StorePack<kPack<T>>(pack, row, fits, i, n);
  }
  __device__ void StoreWhole(int64_t i, const Pack<T, kPack<T>>& pack) const {
    *reinterpret_cast<Pack<T, kPack<T>>*>(row + i) = pack;
  }

  T* row;
  int64_t n;
  bool fits;
};

template <int kLanes, typename T>
__device__ T SumLanes(T value) {
  return FoldLanes<kLanes>(value, [](T a, T b) { return a + b; });
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_ROW_GROUPS_INL_H_
