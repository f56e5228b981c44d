#include "dtensor/runtime/kernels/cuda/extremum.h"

#include <bit>
#include <cstdint>
#include <limits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Keys compare as the values do: equal values have equal keys, a NaN the largest.
template <typename T>
__device__ int64_t OrderedKey(T x) {
  if constexpr (kIsFloat<T>) {
    const auto value = static_cast<double>(Widen(x));
    if (value != value) return kMost;
    const auto bits = std::bit_cast<int64_t>(value == 0 ? 0.0 : value);
    return bits < 0 ? bits ^ kMost : bits;
  } else {
    return x;
  }
}

struct Candidate {
  int64_t key, position;
};

// The larger key; of equal ones the first.
__device__ Candidate Better(Candidate a, Candidate b) {
  const bool second = b.key > a.key || (b.key == a.key && b.position < a.position);
  return second ? b : a;
}

struct ArgMaxPass {
  const void* x;
  StridedLoop<1> kept;
  int64_t outputs, n, stride;
  IndexRuns indices;
  int64_t* stats;
};

// A warp for each output.
template <typename T>
__global__ void ArgMaxKernel(ArgMaxPass a) {
  ForEachRow<kWarp>(a.outputs, [&](int64_t output, int lane) {
    const T* x =
        static_cast<const T*>(a.x) + OffsetsOf(a.kept, static_cast<uint64_t>(output)).at[0];
    // No elements: every shard that has some is larger, or has a lower index.
    Candidate best = {kLeast, kMost};
    for (int64_t i = lane; i < a.n; i += kWarp) {
      best = Better(best, {OrderedKey(x[i * a.stride]), i});
    }
    for (int bits = kWarp / 2; bits > 0; bits /= 2) {
      const int64_t key = __shfl_xor_sync(0xffffffff, best.key, bits);
      const int64_t position = __shfl_xor_sync(0xffffffff, best.position, bits);
      best = Better(best, {key, position});
    }
    if (lane != 0) return;
    a.stats[2 * output] = best.key;
    a.stats[2 * output + 1] = a.n == 0 ? kMost : a.indices.At(best.position);
  });
}

__global__ void ArgMaxMergeKernel(ArgMaxMergeArgs a) {
  ForEachPiece<int64_t>(a.rows, [&](int64_t r) {
    Candidate best = {kLeast, kMost};
    for (int64_t p = 0; p < a.shards; ++p) {
      const int64_t at = 2 * (p * a.rows + r);
      best = Better(best, {ElementOf<int64_t>(a.stats, at), ElementOf<int64_t>(a.stats, at + 1)});
    }
    a.out[r] = best.position;
  });
}

// Sums of whole numbers are the same in any order.
template <typename T>
__global__ void CountTiesKernel(CountTiesArgs a, int64_t n) {
  ForEachElement(a.loop, 0, n, [&](int64_t, const Offsets<3>& offsets) {
    const T x = static_cast<const T*>(a.x)[offsets.at[0]];
    if (Widen(x) != Widen(static_cast<const T*>(a.extremum)[offsets.at[1]])) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(a.count + offsets.at[2]), 1ull);
  });
}

// As PyTorch: the quotient is NaN where nothing is equal, and so is its product with zero.
template <typename T>
__global__ void ShareAmongTiesKernel(ShareAmongTiesArgs a, int64_t n) {
  using C = Compute<T>;
  Map<T>(Inputs<T, T, T, int64_t>(), a.operands, n, [](T x, T extremum, T dy, int64_t count) {
    const C is_tie = Widen(x) == Widen(extremum) ? C{1} : C{0};
    return Round<T>(count == 0 ? std::numeric_limits<C>::quiet_NaN()
                               : is_tie * (Widen(dy) / static_cast<C>(count)));
  });
}

}  // namespace

absl::Status ArgMaxStats(Device& device, const char* kernel, const ArgMaxStatsArgs& args) {
  const int64_t outputs = ElementsOf(args.kept);
  if (outputs == 0) return device.failure();
  return WithIndexRuns(device, kernel, IndexLookup(args.indices), [&](const IndexRuns& indices) {
    const ArgMaxPass pass = {args.x, args.kept, outputs, args.n, args.stride, indices, args.stats};
    return VisitDType(args.dtype, [&](auto t) {
      return LaunchRows<kWarp>(device, kernel, outputs, ArgMaxKernel<decltype(t)>, pass);
    });
  });
}

absl::Status ArgMaxMerge(Device& device, const char* kernel, const ArgMaxMergeArgs& args) {
  if (args.rows == 0) return device.failure();
  return Launch(device, kernel, BlocksFor(args.rows), kThreads, ArgMaxMergeKernel, args);
}

absl::Status CountTies(Device& device, const char* kernel, const CountTiesArgs& args) {
  DT_RETURN_IF_ERROR(device.FillBytes(args.count, 0, args.outputs * SizeOf(DType::kI64)));
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.loop, CountTiesKernel<decltype(t)>, args);
  });
}

absl::Status ShareAmongTies(Device& device, const char* kernel, const ShareAmongTiesArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, ShareAmongTiesKernel<decltype(t)>, args);
  });
}

}  // namespace dtensor::kernels::cuda
