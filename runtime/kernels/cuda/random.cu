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

constexpr int kWords = 4;  // of a block of Philox; elements that a thread has

// Not through an index that only runs know: registers have none.
__device__ uint32_t WordAt(const std::array<uint32_t, kWords>& words, int w) {
  const uint32_t lower = w == 0 ? words[0] : words[1], upper = w == 2 ? words[2] : words[3];
  return w < 2 ? lower : upper;
}

// Each element's word, of a block of Philox that is computed once for all that share it.
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

 private:
  const RandomKey key_;
  uint64_t number_ = ~uint64_t{0};
  std::array<uint32_t, kWords> words_ = {};
};

// Each element's normal number, of a pair that is computed once for both.
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

 private:
  Words words_;
  uint64_t number_ = ~uint64_t{0};
  NormalPair pair_ = {};
};

// out[i] = fn(i, what Numbers has for the element) for this thread's elements i of a shard of n.
template <typename Numbers, typename T, typename Fn>
__device__ void FillBy(const GlobalElements& elements, RandomKey key, int64_t n, T* out, Fn fn) {
  const bool fits = FitsPacks<kWords>(out, 1);
  ForEachPiece<int64_t>((n + kWords - 1) / kWords, [&](int64_t piece) {
    const int64_t first = piece * kWords;
    Numbers numbers(key);
    const auto value = [&](int64_t i, uint64_t global) { return fn(i, numbers.At(global)); };
    const GlobalPlace place = elements.At(first);
    if (place.consecutive < kWords || first + kWords > n) {
      for (int64_t i = first; i < Lesser(first + kWords, n); ++i) {
        out[i] = value(i, elements.At(i).index);
      }
      return;
    }
    Pack<T, kWords> pack;
#pragma unroll
    for (int v = 0; v < kWords; ++v) pack.at[v] = value(first + v, place.index + v);
    StorePack<kWords>(pack, out, fits, first, n);
  });
}

template <typename T>
__global__ void NormalKernel(GlobalElements elements, RandomKey key, double mean, double stddev,
                             T* out, int64_t n) {
  FillBy<Normals>(elements, key, n, out, [&](int64_t, double normal) {
    return Convert<T>(ShiftedNormal(normal, mean, stddev));
  });
}

// In [0, 1), with as many bits as T holds exactly: rounding must not reach 1.
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
  FillBy<Words>(elements, key, n, out, [](int64_t, uint32_t word) { return Uniform<T>(word); });
}

template <typename T>
__global__ void DropoutKernel(GlobalElements elements, RandomKey key, StridedInput x,
                              uint32_t threshold, Compute<T> scale, T* out, int64_t n) {
  FillBy<Words>(elements, key, n, out, [&](int64_t i, uint32_t word) {
    const bool drops = (word >> 8) < threshold;
    return Round<T>(drops ? Compute<T>{0} : Widen(ElementOf<T>(x, i)) * scale);
  });
}

// Calls launch(elements, n, blocks) for the n > 0 elements of a shard.
template <typename Fn>
absl::Status WithElements(Device& device, const char* kernel, const GlobalRuns& runs, Fn launch) {
  const int64_t n = runs.size();
  if (n == 0) return device.failure();
  return WithGlobalElements(device, kernel, runs, [&](const GlobalElements& elements) {
    return launch(elements, n, BlocksFor((n + kWords - 1) / kWords));
  });
}

}  // namespace

absl::Status RandomNormal(Device& device, const char* kernel, const RandomNormalArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n, auto blocks) {
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, blocks, kThreads, NormalKernel<T>, elements, args.key,
                    args.mean, args.stddev, static_cast<T*>(args.out), n);
    });
  });
}

absl::Status RandomUniform(Device& device, const char* kernel, const RandomUniformArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n, auto blocks) {
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, blocks, kThreads, UniformKernel<T>, elements, args.key,
                    static_cast<T*>(args.out), n);
    });
  });
}

absl::Status Dropout(Device& device, const char* kernel, const DropoutArgs& args) {
  return WithElements(device, kernel, args.runs, [&](const auto& elements, int64_t n, auto blocks) {
    return VisitFloat(args.dtype, [&](auto t) {
      using T = decltype(t);
      return Launch(device, kernel, blocks, kThreads, DropoutKernel<T>, elements, args.key, args.x,
                    args.threshold, static_cast<Compute<T>>(args.scale),
                    reinterpret_cast<T*>(args.out), n);
    });
  });
}

}  // namespace dtensor::kernels::cuda
