#include "dtensor/runtime/kernels/cuda/random.h"

#include <array>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/kernels/cuda/global_runs-inl.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int kWords = 4;  // of a block of Philox; elements that a thread has

// Calls fn(i, words, w) for this thread's elements i of a shard of n: `words` are the block that
// belongs to an element, and words[w] the element's own. A block serves all that share it.
template <typename Fn>
__device__ void ForEachWord(const GlobalElements& elements, RandomKey key, int64_t n, Fn fn) {
  ForEachPiece<int64_t>((n + kWords - 1) / kWords, [&](int64_t piece) {
    int64_t block = -1;
    std::array<uint32_t, kWords> words = {};
    for (int64_t i = piece * kWords; i < Lesser((piece + 1) * kWords, n); ++i) {
      const int64_t global = elements[i];
      if (global / kWords != block) {
        block = global / kWords;
        words = PhiloxBlock(key.seed, key.stream, static_cast<uint64_t>(block));
      }
      fn(i, words, static_cast<int>(global % kWords));
    }
  });
}

// Not through an index that only runs know: registers have none.
__device__ uint32_t WordAt(const std::array<uint32_t, kWords>& words, int w) {
  const uint32_t lower = w == 0 ? words[0] : words[1], upper = w == 2 ? words[2] : words[3];
  return w < 2 ? lower : upper;
}

// Box-Muller: a pair of words gives two independent normals.
__device__ double NormalAt(const std::array<uint32_t, kWords>& words, int w) {
  constexpr double kScale = 0x1p-32, kTwoPi = 6.283185307179586477;
  const uint32_t first = w < 2 ? words[0] : words[2], second = w < 2 ? words[1] : words[3];
  const double radius = sqrt(-2 * log((first + 0.5) * kScale));  // never log(0)
  const double angle = kTwoPi * kScale * second;
  return radius * (w % 2 == 0 ? cos(angle) : sin(angle));
}

template <typename T>
__global__ void NormalKernel(GlobalElements elements, RandomKey key, double mean, double stddev,
                             T* out, int64_t n) {
  ForEachWord(elements, key, n, [&](int64_t i, const auto& words, int w) {
    out[i] = Convert<T>(mean + stddev * NormalAt(words, w));
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
  ForEachWord(elements, key, n,
              [&](int64_t i, const auto& words, int w) { out[i] = Uniform<T>(WordAt(words, w)); });
}

template <typename T>
__global__ void DropoutKernel(GlobalElements elements, RandomKey key, StridedInput x,
                              uint32_t threshold, Compute<T> scale, T* out, int64_t n) {
  ForEachWord(elements, key, n, [&](int64_t i, const auto& words, int w) {
    const bool drops = (WordAt(words, w) >> 8) < threshold;
    out[i] = Round<T>(drops ? Compute<T>{0} : Widen(ElementOf<T>(x, i)) * scale);
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
