#include "dtensor/runtime/kernels/cuda/rope.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/kernels/arguments/rope_frequency.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int kThreadsOfToken = 128;
constexpr int kAngles = 256;  // pairs of a head that are turned at a time

using Frequencies = List<double, 64>;  // heads of 128 elements and shorter need no memory

struct RotateArgs {
  IndexRuns positions;
  Frequencies frequencies;
  StridedLoop<1> tokens;
  int64_t count, length, heads, half, head_stride, stride;
  bool inverse;
  const std::byte* x;
  std::byte* y;
};

// The cosines and sines of `n` angles from `first` on. A thread has a few of them; those of all
// heads are the same.
template <typename C>
__device__ void FindAngles(const RotateArgs& a, int64_t position, int64_t first, int n, C* cosines,
                           C* sines) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const double angle = static_cast<double>(position) * a.frequencies[first + i];
    const C sine = static_cast<C>(sin(angle));
    cosines[i] = static_cast<C>(cos(angle));
    sines[i] = a.inverse ? -sine : sine;
  }
}

// V pairs of one head: y0 and y1 are as far apart as x0 and x1, in their own units.
template <typename T, int V>
__device__ void RotatePack(const T* x0, const T* x1, const Compute<T>* cosines,
                           const Compute<T>* sines, T* y0, T* y1) {
  const auto first = *reinterpret_cast<const Pack<T, V>*>(x0);
  const auto second = *reinterpret_cast<const Pack<T, V>*>(x1);
  Pack<T, V> out0, out1;
  for (int v = 0; v < V; ++v) {
    const auto a = Widen(first.at[v]), b = Widen(second.at[v]);
    const auto c = cosines[v], s = sines[v];
    out0.at[v] = Round<T>(fma(-b, s, a * c));
    out1.at[v] = Round<T>(fma(a, s, b * c));
  }
  *reinterpret_cast<Pack<T, V>*>(y0) = out0;
  *reinterpret_cast<Pack<T, V>*>(y1) = out1;
}

// The pairs from `first` on of all heads of a token. The block's threads share out heads and packs.
template <typename T, int V>
__device__ void RotateHeads(const RotateArgs& a, const T* x, int64_t first, int n,
                            const Compute<T>* cosines, const Compute<T>* sines, T* y) {
  const int packs = n / V, width = packs < kThreadsOfToken ? packs : kThreadsOfToken;
  const int rows = kThreadsOfToken / width, row = threadIdx.x / width;
  if (row >= rows) return;
  for (int64_t head = row; head < a.heads; head += rows) {
    for (int pack = threadIdx.x % width; pack < packs; pack += width) {
      const int i = pack * V;
      const T* const x0 = x + head * a.head_stride + (first + i) * a.stride;
      T* const y0 = y + head * 2 * a.half + first + i;
      RotatePack<T, V>(x0, x0 + a.half * a.stride, cosines + i, sines + i, y0, y0 + a.half);
    }
  }
}

// A block turns a token.
template <typename T, int V>
__global__ void RotateKernel(RotateArgs a) {
  using C = Compute<T>;
  DT_SHARED(C, cosines, kAngles);
  DT_SHARED(C, sines, kAngles);
  for (int64_t token = blockIdx.x; token < a.count; token += gridDim.x) {
    const int64_t position = a.positions.At(token % a.length);
    const int64_t offset = OffsetsOf(a.tokens, static_cast<uint64_t>(token)).at[0];
    const T* const x = reinterpret_cast<const T*>(a.x) + offset;
    T* const y = reinterpret_cast<T*>(a.y) + token * a.heads * 2 * a.half;
    for (int64_t first = 0; first < a.half; first += kAngles) {
      const int n = a.half - first < kAngles ? static_cast<int>(a.half - first) : kAngles;
      FindAngles(a, position, first, n, cosines, sines);
      __syncthreads();
      RotateHeads<T, V>(a, x, first, n, cosines, sines, y);
      __syncthreads();  // the next angles go there
    }
  }
}

// All rows of pairs begin where packs of V elements of `size` bytes may, and are made of such.
bool IsInPacks(const RotateArgs& a, int64_t size, int64_t V) {
  bool is = a.stride == 1 && a.half % V == 0 && (a.head_stride % V == 0 || a.heads == 1) &&
            reinterpret_cast<uintptr_t>(a.x) % (V * size) == 0 &&
            reinterpret_cast<uintptr_t>(a.y) % (V * size) == 0;
  for (int d = 0; d < a.tokens.ndim(); ++d) is = is && a.tokens.stride(d, 0) % V == 0;
  return is;
}

absl::Status Rotate(Device& device, const char* kernel, DType dtype, const RotateArgs& args) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(args.count, 1 << 20));
  return VisitFloat(dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / sizeof(T);
    const bool packs = IsInPacks(args, sizeof(T), V);
    return Launch(device, kernel, blocks, kThreadsOfToken,
                  packs ? RotateKernel<T, V> : RotateKernel<T, 1>, args);
  });
}

}  // namespace

absl::Status Rope(Device& device, const char* kernel, const RopeArgs& args) {
  if (args.numel == 0) return device.failure();
  const std::vector<double> frequencies = RopeFrequencies(args.base, args.d);
  return WithIndexRuns(
      device, kernel, IndexLookup(args.positions), [&](const IndexRuns& positions) {
        return WithList<64>(
            device, kernel, absl::MakeConstSpan(frequencies), [&](const Frequencies& list) {
              return Rotate(device, kernel, args.dtype,
                            {positions, list, args.tokens, args.numel / (args.heads * args.d),
                             args.length, args.heads, args.d / 2, args.head_stride, args.stride,
                             args.inverse, args.x, args.y});
            });
      });
}

}  // namespace dtensor::kernels::cuda
