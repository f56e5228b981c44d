#include <algorithm>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/kernels/arguments/normal_pair.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/indexed.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/random_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

constexpr int64_t kWords = 1024;

// Calls fn(words, skip, n, done): `words` are whole blocks, and words[skip, skip + n) belong to the
// shard's local elements [done, done + n).
template <typename Fn>
void ForEachWords(const GlobalRuns& runs, RandomKey key, Fn&& fn) {
  alignas(64) uint32_t words[kWords];
  int64_t done = 0;
  runs.ForEach([&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t skip = begin % 4;
      const int64_t n = std::min(end - begin, kWords - skip);
      simd::PhiloxBlocks(key.seed, key.stream, static_cast<uint64_t>(begin / 4), (skip + n + 3) / 4,
                         words);
      fn(words, skip, n, done);
      begin += n;
      done += n;
    }
  });
}

// The n normal numbers of n words, n even.
void FillNormals(const uint32_t* words, int64_t n, double* normals) {
  for (int64_t i = 0; i < n; i += 2) {
    const NormalPair pair = NormalsOf(words[i], words[i + 1]);
    normals[i] = pair.first;
    normals[i + 1] = pair.second;
  }
}

// A number in [0, 1), with only as many bits as T holds exactly: it must not be rounded to 1.
template <typename T>
T Uniform(uint32_t word) {
  if constexpr (std::is_same_v<T, double>) return word * 0x1p-32;
  if constexpr (std::is_same_v<T, float>) return static_cast<float>(word >> 8) * 0x1p-24f;
  if constexpr (std::is_same_v<T, BFloat16>) return T(static_cast<float>(word >> 24) * 0x1p-8f);
  return Cast<T>(static_cast<float>(word >> 21) * 0x1p-11f);
}

template <typename T>
void FillNormal(const RandomNormalArgs& a) {
  const auto fill = [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
    double normals[kWords];
    FillNormals(words, (skip + n + 3) / 4 * 4, normals);
    T* dst = static_cast<T*>(a.out) + done;
    for (int64_t i = 0; i < n; ++i) {
      dst[i] = Cast<T>(ShiftedNormal(normals[skip + i], a.mean, a.stddev));
    }
  };
  ForEachWords(a.runs, a.key, fill);
}

template <typename T>
void FillUniform(const RandomUniformArgs& a) {
  const auto fill = [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
    T* dst = static_cast<T*>(a.out) + done;
    for (int64_t i = 0; i < n; ++i) dst[i] = Uniform<T>(words[skip + i]);
  };
  ForEachWords(a.runs, a.key, fill);
}

void DropSome(const DropoutArgs& a) {
  std::vector<std::byte> scratch;
  const auto* src = static_cast<const std::byte*>(Packed(a.x, scratch));
  const auto drop = [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
    const int64_t offset = done * SizeOf(a.dtype);
    simd::Dropout(a.dtype, src + offset, words + skip, a.threshold, a.scale, a.out + offset, n);
  };
  ForEachWords(a.runs, a.key, drop);
}

}  // namespace

absl::Status RandomNormal(Device& device, const char* kernel, const RandomNormalArgs& args) {
  return Launch(device, kernel, args, [](const RandomNormalArgs& a) {
    VisitFloat(a.dtype, [&](auto t) { FillNormal<decltype(t)>(a); });
  });
}

absl::Status RandomUniform(Device& device, const char* kernel, const RandomUniformArgs& args) {
  return Launch(device, kernel, args, [](const RandomUniformArgs& a) {
    VisitFloat(a.dtype, [&](auto t) { FillUniform<decltype(t)>(a); });
  });
}

absl::Status Dropout(Device& device, const char* kernel, const DropoutArgs& args) {
  return Launch(device, kernel, args, DropSome);
}

}  // namespace dtensor::kernels::cpu
