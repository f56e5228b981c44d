#include "dtensor/runtime/kernels/cuda/random.h"

#include <array>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/kernels/arguments/normal_pair.h"
#include "dtensor/runtime/kernels/cuda/global_runs-inl.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int kWords = 4;  // of a block of Philox
// The elements that a thread processes at a time: 16 bytes, or those of a block of Philox.
template <typename T>
inline constexpr int kElements = sizeof(T) < 4 ? 8 : kWords;

// Without an index that is known only at run time: registers cannot be indexed.
__device__ uint32_t WordAt(const std::array<uint32_t, kWords>& words, int w) {
  const uint32_t lower = w == 0 ? words[0] : words[1], upper = w == 2 ? words[2] : words[3];
  return w < 2 ? lower : upper;
}

// The word of each element. A block of Philox is computed once for all elements that share it.
class Words {
 public:
  explicit __device__ Words(RandomKey key) : key_(key) {}
  __device__ const std::array<uint32_t, kWords>& BlockOf(uint64_t global) {
    if (global / kWords != number_) {
      number_ = global / kWords;
      words_ = PhiloxBlock(key_.seed, key_.stream, number_);
    }
    return words_;
  }
  __device__ uint32_t At(uint64_t global) {
    return WordAt(BlockOf(global), static_cast<int>(global % kWords));
  }
  // The words of all elements of a block.
  static __device__ std::array<uint32_t, kWords> Of(const std::array<uint32_t, kWords>& block) {
    return block;
  }

 private:
  const RandomKey key_;
  uint64_t number_ = ~uint64_t{0};
  std::array<uint32_t, kWords> words_ = {};
};

// The normal number of each element. A pair is computed once for both of its elements.
class Normals {
 public:
  explicit __device__ Normals(RandomKey key) : words_(key) {}
  __device__ double At(uint64_t global) {
    if (global / 2 != number_) {
      number_ = global / 2;
      const auto& words = words_.BlockOf(global);
      const bool lower = global % kWords < 2;
      pair_ = NormalsOf(lower ? words[0] : words[2], lower ? words[1] : words[3]);
    }
    return global % 2 == 0 ? pair_.first : pair_.second;
  }
  static __device__ std::array<double, kWords> Of(const std::array<uint32_t, kWords>& block) {
    const NormalPair lower = NormalsOf(block[0], block[1]), upper = NormalsOf(block[2], block[3]);
    return {lower.first, lower.second, upper.first, upper.second};
  }

 private:
  Words words_;
  uint64_t number_ = ~uint64_t{0};
  NormalPair pair_ = {};
};

// The input of kernels that have none.
struct NoInput {
  template <int V>
  __device__ bool FitsPacks() const {
    return true;
  }
  template <int V>
  __device__ NoInput PackAt(int64_t) const {
    return {};
  }
  __device__ NoInput At(int64_t) const { return {}; }
  __device__ NoInput operator[](int) const { return {}; }
};

template <typename T>
struct Input {
  template <int V>
  struct Values {
    Pack<T, V> pack;
    __device__ T operator[](int v) const { return pack.at[v]; }
  };

  template <int V>
  __device__ bool FitsPacks() const {
    return x.contiguous && cuda::FitsPacks<V>(reinterpret_cast<const T*>(x.data), 1);
  }
  template <int V>
  __device__ Values<V> PackAt(int64_t i) const {
    return {*reinterpret_cast<const Pack<T, V>*>(x.data + i * static_cast<int64_t>(sizeof(T)))};
  }
  __device__ T At(int64_t i) const { return ElementOf<T>(x, i); }

  const StridedInput& x;
};

// The elements from `first` to `end`, one by one.
template <typename Numbers, typename T, typename X, typename Fn>
__device__ void FillEach(const GlobalElements& elements, RandomKey key, const X& x, int64_t first,
                         int64_t end, T* out, Fn fn) {
  Numbers numbers(key);
  GlobalPlace place = {};
  for (int64_t i = first; i < end; ++i) {
    if (place.consecutive == 0) place = elements.At(i);
    out[i] = fn(x.At(i), numbers.At(place.index));
    ++place.index;
    --place.consecutive;
  }
}

// out[i] = fn(x's element, its number by Numbers) for this thread's elements i of a shard of n.
template <typename Numbers, typename T, typename X, typename Fn>
__device__ void FillBy(const GlobalElements& elements, RandomKey key, const X& x, int64_t n, T* out,
                       Fn fn) {
  constexpr int V = kElements<T>;
  const bool fits = FitsPacks<V>(out, 1) && x.template FitsPacks<V>();
  ForEachPiece<int64_t>((n + V - 1) / V, [&](int64_t piece) {
    const int64_t first = piece * V;
    const GlobalPlace place = elements.At(first);
    const bool whole = place.consecutive >= V && first + V <= n && place.index % kWords == 0;
    if (!fits || !whole) {
      return FillEach<Numbers>(elements, key, x, first, Lesser(first + V, n), out, fn);
    }
    const auto in = x.template PackAt<V>(first);
    Pack<T, V> pack;
#pragma unroll
    for (int w = 0; w < V; w += kWords) {
      const uint64_t number = static_cast<uint64_t>(place.index) / kWords + w / kWords;
      const auto block = Numbers::Of(PhiloxBlock(key.seed, key.stream, number));
#pragma unroll
      for (int k = 0; k < kWords; ++k) pack.at[w + k] = fn(in[w + k], block[k]);
    }
    *reinterpret_cast<Pack<T, V>*>(out + first) = pack;
  });
}

template <typename T>
__global__ void NormalKernel(GlobalElements elements, RandomKey key, double mean, double stddev,
                             T* out, int64_t n) {
  FillBy<Normals>(elements, key, NoInput(), n, out, [&](NoInput, double normal) {
    return Convert<T>(ShiftedNormal(normal, mean, stddev));
  });
}

// A number in [0, 1), with only as many bits as T holds exactly: it must not be rounded to 1.
template <typename T>
__device__ T Uniform(uint32_t word) {
  if constexpr (std::is_same_v<T, double>) {
    return word * 0x1p-32;
  } else if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(word >> 8) * 0x1p-24f;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return Round<T>(static_cast<float>(word >> 24) * 0x1p-8f);
  } else {
    return Round<T>(static_cast<float>(word >> 21) * 0x1p-11f);
  }
}

template <typename T>
__global__ void UniformKernel(GlobalElements elements, RandomKey key, T* out, int64_t n) {
  FillBy<Words>(elements, key, NoInput(), n, out,
                [](NoInput, uint32_t word) { return Uniform<T>(word); });
}

template <typename T>
__global__ void DropoutKernel(const __grid_constant__ GlobalElements elements, RandomKey key,
                              const __grid_constant__ StridedInput x, uint32_t limit,
                              Compute<T> scale, T* out, int64_t n) {
  FillBy<Words>(elements, key, Input<T>{x}, n, out, [&](T element, uint32_t word) {
    return Round<T>(word < limit ? 0 : Widen(element) * scale);
  });
}

// Calls launch(elements, n) for the n > 0 elements of a shard.
template <typename Fn>
absl::Status WithElements(Device& device, const char* kernel, const GlobalRuns& runs, Fn launch) {
  const int64_t n = runs.size();
  if (n == 0) return device.failure();
  return WithGlobalElements(device, kernel, runs,
                            [&](const GlobalElements& elements) { return launch(elements, n); });
}

template <typename T>
unsigned BlocksOf(int64_t n) {
  return BlocksFor((n + kElements<T> - 1) / kElements<T>);
}

}  // namespace

absl::Status RandomNormal(Device& device, const char* kernel, const RandomNormalArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n) {
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, BlocksOf<T>(n), kThreads, NormalKernel<T>, elements, args.key,
                    args.mean, args.stddev, static_cast<T*>(args.out), n);
    });
  });
}

absl::Status RandomUniform(Device& device, const char* kernel, const RandomUniformArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n) {
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, BlocksOf<T>(n), kThreads, UniformKernel<T>, elements, args.key,
                    static_cast<T*>(args.out), n);
    });
  });
}

absl::Status Dropout(Device& device, const char* kernel, const DropoutArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n) {
    // A word's upper 24 bits are below the threshold if the word is below threshold << 8. At 2^24
    // that would overflow, and everything is dropped.
    if (args.threshold >> 24 != 0) return device.FillBytes(args.out, 0, n * SizeOf(args.dtype));
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, BlocksOf<T>(n), kThreads, DropoutKernel<T>, elements, args.key,
                    args.x, args.threshold << 8, static_cast<Compute<T>>(args.scale),
                    reinterpret_cast<T*>(args.out), n);
    });
  });
}

}  // namespace dtensor::kernels::cuda
