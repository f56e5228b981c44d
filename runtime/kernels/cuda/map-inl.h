// The loop of elementwise kernels.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_MAP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_MAP_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "dtensor/runtime/kernels/arguments/strided_loop.h"
#include "dtensor/runtime/kernels/cuda/launch-inl.h"

namespace dtensor::kernels::cuda {

// The position of element i of a loop, row-major, in each of its operands, in elements.
template <int N>
struct Offsets {
  int64_t at[N];
};
template <typename Index, int N>
__device__ Offsets<N> OffsetsOf(const StridedLoop<N>& loop, Index i) {
  Offsets<N> offsets = {};
  for (int d = 0; d < loop.ndim(); ++d) {
    // Nothing remains of the index after the outermost dimension.
    const Index size = static_cast<Index>(loop.size(d)), rest = d + 1 < loop.ndim() ? i / size : 0;
    const int64_t index = static_cast<int64_t>(i - rest * size);
    for (int k = 0; k < N; ++k) offsets.at[k] += index * loop.stride(d, k);
    i = rest;
  }
  return offsets;
}

// On the GPU: calls fn(n), with n in 32 bits if it fits: divisions of 64 bits are slow.
template <typename Fn>
__device__ void WithIndex(int64_t n, Fn fn) {
  if (n < int64_t{1} << 31) return fn(static_cast<uint32_t>(n));
  fn(static_cast<uint64_t>(n));
}

// On the GPU: calls fn(i, offsets) for this thread's elements from `begin` on, of a loop of n.
template <int N, typename Fn>
__device__ void ForEachElement(const StridedLoop<N>& loop, int64_t begin, int64_t n, Fn fn) {
  const auto visit = [&](auto rest) {
    using Index = decltype(rest);
    ForEachPiece<Index>(rest, [&](Index p) {
      const Index i = static_cast<Index>(begin) + p;
      fn(static_cast<int64_t>(i), OffsetsOf(loop, i));
    });
  };
  // Divisions of 64 bits are slow.
  if (n < int64_t{1} << 31) return visit(static_cast<uint32_t>(n - begin));
  visit(static_cast<uint64_t>(n - begin));
}

template <int N>
int64_t ElementsOf(const StridedLoop<N>& loop) {
  if (loop.empty()) return 0;
  int64_t n = 1;
  for (int d = 0; d < loop.ndim(); ++d) n *= loop.size(d);
  return n;
}

// Calls fn(bits) with an unsigned type of `size` bytes: for kernels that only move elements.
template <typename Fn>
absl::Status WithBits(int64_t size, Fn fn) {
  if (size == 1) return fn(uint8_t{});
  if (size == 2) return fn(uint16_t{});
  if (size == 4) return fn(uint32_t{});
  return fn(uint64_t{});
}

// Inputs of these types. (A lambda's result may have two elements: Two.)
template <typename... In>
struct Inputs {};
template <typename T>
struct Two {
  T first, second;
};

// V neighbours, which are read and written together.
template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// Whether no pack of V neighbours in row-major order, starting at a multiple of V, spans two
// innermost rows.
template <int V, int N>
__host__ __device__ bool WholePacks(const StridedLoop<N>& loop) {
  return loop.ndim() <= 1 || loop.size(0) % V == 0;
}
// Whether packs are also adjacent in operand k, which begins at `data`, and aligned as a pack.
template <int V, typename T, int N>
__host__ __device__ bool FitsPacks(const T* data, const StridedLoop<N>& loop, int k) {
  bool fits = WholePacks<V>(loop) && loop.inner_stride(k) == 1 &&
              reinterpret_cast<uintptr_t>(data) % sizeof(Pack<T, V>) == 0;
  for (int d = 1; d < loop.ndim(); ++d) fits = fits && loop.stride(d, k) % V == 0;
  return fits;
}

namespace internal {

template <typename... In, size_t... I, int kIn, int kOut, typename Fn>
__device__ auto ApplyAt(Inputs<In...>, std::index_sequence<I...>,
                        const StridedOperands<kIn, kOut>& x, const Offsets<kIn>& offsets, Fn fn) {
  return fn(reinterpret_cast<const In*>(x.in[I])[offsets.at[I]]...);
}

template <typename Out, int kIn, int kOut>
__device__ void StoreAt(const StridedOperands<kIn, kOut>& x, int64_t i, Out value) {
  reinterpret_cast<Out*>(x.out[0])[i] = value;
}
template <typename Out, int kIn, int kOut>
__device__ void StoreAt(const StridedOperands<kIn, kOut>& x, int64_t i, Two<Out> value) {
  reinterpret_cast<Out*>(x.out[0])[i] = value.first;
  reinterpret_cast<Out*>(x.out[1])[i] = value.second;
}

// Each input is read in packs, or once per pack if it has one value along the innermost dimension;
// all outputs are written in packs.
template <int V, typename Out, typename... In, size_t... I, int kIn, int kOut>
__device__ bool FitPacks(Inputs<In...>, std::index_sequence<I...>,
                         const StridedOperands<kIn, kOut>& x) {
  bool fit = WholePacks<V>(x.loop);
  fit = fit && ((x.loop.inner_stride(I) == 0 ||
                 FitsPacks<V>(reinterpret_cast<const In*>(x.in[I]), x.loop, I)) &&
                ...);
  for (int k = 0; k < kOut; ++k) {
    fit = fit && reinterpret_cast<uintptr_t>(x.out[k]) % sizeof(Pack<Out, V>) == 0;
  }
  return fit;
}

template <int kIn, int kOut>
__device__ bool HasSplats(const StridedOperands<kIn, kOut>& x) {
  bool has = false;
  for (int k = 0; k < kIn; ++k) has = has || x.loop.inner_stride(k) == 0;
  return has;
}

// V neighbours, or V copies of the single value.
template <int V, bool kSplats, typename T>
__device__ Pack<T, V> LoadOrSplat(const T* from, int64_t stride) {
  if constexpr (kSplats) {
    if (stride == 0) {
      Pack<T, V> pack;
      for (int v = 0; v < V; ++v) pack.at[v] = *from;
      return pack;
    }
  }
  return *reinterpret_cast<const Pack<T, V>*>(from);
}

template <typename Out, int V>
__device__ void Put(Pack<Out, V>* packs, int v, Out value) {
  packs[0].at[v] = value;
}
template <typename Out, int V>
__device__ void Put(Pack<Out, V>* packs, int v, Two<Out> value) {
  packs[0].at[v] = value.first;
  packs[1].at[v] = value.second;
}

// Maps pack p of a loop for which FitPacks holds. Without splats no branch separates the loads.
template <int V, bool kSplats, typename Out, typename... In, size_t... I, int kIn, int kOut,
          typename Fn>
__device__ void MapPack(Inputs<In...>, std::index_sequence<I...>,
                        const StridedOperands<kIn, kOut>& x, int64_t p, Fn fn) {
  const Offsets<kIn> offsets = OffsetsOf(x.loop, static_cast<uint64_t>(p) * V);
  const auto apply = [&](const Pack<In, V>&... in) {
    Pack<Out, V> out[kOut];
    for (int v = 0; v < V; ++v) Put<Out, V>(out, v, fn(in.at[v]...));
    for (int k = 0; k < kOut; ++k) reinterpret_cast<Pack<Out, V>*>(x.out[k])[p] = out[k];
  };
  apply(LoadOrSplat<V, kSplats>(reinterpret_cast<const In*>(x.in[I]) + offsets.at[I],
                                x.loop.inner_stride(I))...);
}

}  // namespace internal

// On the GPU: out[i] = fn(in[0][i], ...) for all n elements; with two outputs fn gives Two<Out>. An
// output may be an input's own memory, element for element.
template <typename Out, typename... In, int kIn, int kOut, typename Fn>
__device__ void Map(Inputs<In...> inputs, const StridedOperands<kIn, kOut>& x, int64_t n, Fn fn) {
  static_assert(sizeof...(In) == kIn);
  constexpr auto kEach = std::make_index_sequence<kIn>();
  constexpr int V = 16 / static_cast<int>(std::max({sizeof(Out), sizeof(In)...}));
  int64_t packed = 0;
  if (internal::FitPacks<V, Out>(inputs, kEach, x)) {
    packed = n / V * V;
    const auto map = [&](auto splats) {
      ForEachPiece<int64_t>(
          n / V, [&](int64_t p) { internal::MapPack<V, splats, Out>(inputs, kEach, x, p, fn); });
    };
    internal::HasSplats(x) ? map(std::true_type()) : map(std::false_type());
  }
  ForEachElement(x.loop, packed, n, [&](int64_t i, const Offsets<kIn>& offsets) {
    internal::StoreAt<Out>(x, i, internal::ApplyAt(inputs, kEach, x, offsets, fn));
  });
}

// Launches kernel(args, n) over the n elements of `loop`.
template <typename Args, int N>
absl::Status LaunchMap(Device& device, const char* name, const StridedLoop<N>& loop,
                       void (*kernel)(Args, int64_t), const Args& args) {
  const int64_t n = ElementsOf(loop);
  if (n == 0) return device.failure();
  return Launch(device, name, BlocksFor(n), kThreads, kernel, args, n);
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_MAP_INL_H_
