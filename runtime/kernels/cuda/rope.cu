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
#include "dtensor/runtime/kernels/cuda/pack_words-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int kAngles = kThreads;  // of a block: each thread computes one

using Frequencies = List<double, 64>;  // heads of 128 elements and shorter need no memory

struct RotateArgs {
  IndexRuns positions;
  Frequencies frequencies;
  StridedLoop<1> tokens;
  int64_t count, length, heads, half, head_stride, stride;
  double amplitude;
  bool inverse;
  const std::byte* x;
  std::byte* y;
};

// The offset of a token's first element.
__device__ int64_t OffsetOf(const RotateArgs& a, int64_t token) {
  int64_t offset = 0;
  WithIndex(a.count,
            [&](auto n) { offset = OffsetsOf(a.tokens, static_cast<decltype(n)>(token)).at[0]; });
  return offset;
}

// What a block rotates: for `slots` tokens, the `n` pairs of each head that begin at `first`. With
// short heads these are several tokens, with very long ones a part of a token.
struct TokenGroup {
  __device__ explicit TokenGroup(const RotateArgs& a) {
    const auto parts = static_cast<uint32_t>((a.half + kAngles - 1) / kAngles);
    const uint32_t group = blockIdx.x / parts;
    first = static_cast<int64_t>(blockIdx.x - group * parts) * kAngles;
    n = static_cast<int>(Lesser(a.half - first, kAngles));
    const int most = kAngles / n;
    slots = parts == 1 ? most : 1;
    token = static_cast<int64_t>(group) * slots;
    slots = static_cast<int>(Lesser(slots, a.count - token));
  }
  int64_t token, first;
  int slots, n;
};

// Computes the cosines and sines of a group. All heads of a token have the same ones.
template <typename C>
__device__ void FindAngles(const RotateArgs& a, const TokenGroup& group, C* cosines, C* sines) {
  const int i = threadIdx.x, slot = i / group.n;
  if (slot >= group.slots) return;
  const int64_t token = group.token + slot;
  const int64_t position = a.positions.At(token - Divide(token, a.length) * a.length);
  const double angle =
      static_cast<double>(position) * a.frequencies[group.first + (i - slot * group.n)];
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  cosines[i] = static_cast<C>(a.amplitude * cosine);
  sines[i] = static_cast<C>(a.amplitude * (a.inverse ? -sine : sine));
}

// V pairs of one head.
template <typename T, int V>
struct Pairs {
  using Words = PackWords<T, V>;
  Words first, second;

  __device__ Pairs Turned(const Pack<Compute<T>, V>& cosines,
                          const Pack<Compute<T>, V>& sines) const {
    const Pack<T, V> x0 = first.pack(), x1 = second.pack();
    Pack<T, V> y0, y1;
    for (int v = 0; v < V; ++v) {
      const auto a = Widen(x0.at[v]), b = Widen(x1.at[v]);
      const auto c = cosines.at[v], s = sines.at[v];
      y0.at[v] = Round<T>(fma(-b, s, a * c));
      y1.at[v] = Round<T>(fma(a, s, b * c));
    }
    return {Words::Of(y0), Words::Of(y1)};
  }
};

// A thread rotates V pairs of every step'th head of one token.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads, 4) RotateKernel(const __grid_constant__ RotateArgs a) {
  using C = Compute<T>;
  using Angles = Pack<C, V>;
  using Words = PackWords<T, V>;
  DT_SHARED(Angles, cosines, kAngles / V);
  DT_SHARED(Angles, sines, kAngles / V);
  constexpr int kAhead = 2;  // heads that are read together
  const TokenGroup group(a);
  const int packs = group.n / V, step = kThreads / (group.slots * packs);
  const int slot = threadIdx.x / (step * packs), within = threadIdx.x - slot * step * packs;
  const int row = within / packs, pack = within - row * packs;
  const int64_t token = group.token + slot, from = group.first + pack * V;
  const T *x0 = nullptr, *x1 = nullptr;
  T* y = nullptr;
  int64_t heads = 0;  // threads beyond the last slot rotate none
  if (slot < group.slots) {
    heads = a.heads;
    x0 = reinterpret_cast<const T*>(a.x) + OffsetOf(a, token) + from * a.stride;
    x1 = x0 + a.half * a.stride;
    y = reinterpret_cast<T*>(a.y) + token * a.heads * 2 * a.half + from;
  }
  // The first heads are being loaded while the angles are computed.
  for (int64_t begin = 0; begin < a.heads; begin += kAhead * step) {
    Pairs<T, V> pairs[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t head = begin + row + k * step;
      if (head >= heads) break;
      pairs[k] = {Words::Load(x0 + head * a.head_stride), Words::Load(x1 + head * a.head_stride)};
    }
    if (begin == 0) {
      FindAngles(a, group, reinterpret_cast<C*>(cosines), reinterpret_cast<C*>(sines));
      __syncthreads();
    }
    const int angles = slot * packs + pack;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t head = begin + row + k * step;
      if (head >= heads) break;
      const Pairs<T, V> turned = pairs[k].Turned(cosines[angles], sines[angles]);
      T* const to = y + head * 2 * a.half;
      turned.first.Store(to);
      turned.second.Store(to + a.half);
    }
  }
}

// Whether all rows of pairs consist of packs of V elements of `size` bytes, and are aligned for
// them.
bool IsInPacks(const RotateArgs& a, int64_t size, int64_t V) {
  bool is = a.stride == 1 && a.half % V == 0 && (a.head_stride % V == 0 || a.heads == 1) &&
            reinterpret_cast<uintptr_t>(a.x) % (V * size) == 0 &&
            reinterpret_cast<uintptr_t>(a.y) % (V * size) == 0;
  for (int d = 0; d < a.tokens.ndim(); ++d) is = is && a.tokens.stride(d, 0) % V == 0;
  return is;
}

absl::Status Rotate(Device& device, const char* kernel, DType dtype, const RotateArgs& args) {
  const int64_t parts = (args.half + kAngles - 1) / kAngles;
  const int64_t slots = parts == 1 ? kAngles / args.half : 1;
  const auto blocks = static_cast<unsigned>((args.count + slots - 1) / slots * parts);
  return VisitFloat(dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int V = 16 / sizeof(T);
    const bool packs = IsInPacks(args, sizeof(T), V);
    return Launch(device, kernel, blocks, kThreads, packs ? RotateKernel<T, V> : RotateKernel<T, 1>,
                  args);
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
                             args.base.scaling.amplitude, args.inverse, args.x, args.y});
            });
      });
}

}  // namespace dtensor::kernels::cuda
