#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/random_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor::kernels {
namespace {

// The elements of a shard in row-major order, as runs of consecutive global row-major indices.
class GlobalRuns {
 public:
  GlobalRuns(absl::Span<const IndexSet> region, absl::Span<const int64_t> shape)
      : region_(region.begin(), region.end()), shape_(shape.begin(), shape.end()) {
    // Trailing dimensions that are here as a whole make the runs longer.
    while (!region_.empty() && region_.back() == IndexSet::Interval(0, shape_.back())) {
      whole_ *= shape_.back();
      region_.pop_back();
      shape_.pop_back();
    }
  }

  // Calls fn(begin, end) with global indices.
  template <typename Fn>
  void ForEach(Fn&& fn) const {
    Visit(0, 0, fn);
  }

 private:
  template <typename Fn>
  void Visit(size_t d, int64_t outer, Fn& fn) const {
    if (d == region_.size()) {
      fn(outer * whole_, (outer + 1) * whole_);
      return;
    }
    for (const IndexRun& run : region_[d].runs()) {
      for (int64_t j = 0; j < run.count; ++j) {
        const int64_t begin = outer * shape_[d] + run.begin + j * run.stride;
        if (d + 1 == region_.size()) {
          fn(begin * whole_, (begin + run.length) * whole_);
          continue;
        }
        for (int64_t i = 0; i < run.length; ++i) Visit(d + 1, begin + i, fn);
      }
    }
  }

  absl::InlinedVector<IndexSet, 4> region_;
  Dims shape_;
  int64_t whole_ = 1;
};

struct Generator {
  uint64_t seed, stream;
};

constexpr int64_t kWords = 1024;

// Calls fn(words, skip, n, done): `words` are whole blocks, and words[skip, skip + n) belong to the
// shard's local elements [done, done + n).
template <typename Fn>
void ForEachWords(const GlobalRuns& runs, Generator generator, Fn&& fn) {
  alignas(64) uint32_t words[kWords];
  int64_t done = 0;
  runs.ForEach([&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t skip = begin % 4;
      const int64_t n = std::min(end - begin, kWords - skip);
      simd::PhiloxBlocks(generator.seed, generator.stream, static_cast<uint64_t>(begin / 4),
                         (skip + n + 3) / 4, words);
      fn(words, skip, n, done);
      begin += n;
      done += n;
    }
  });
}

// Box-Muller: each pair of words gives a pair of independent normals.
void NormalPairs(const uint32_t* words, int64_t n, double* normals) {
  constexpr double kScale = 0x1p-32, kTwoPi = 6.283185307179586477;
  for (int64_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log((words[i] + 0.5) * kScale));  // never log(0)
    const double angle = kTwoPi * kScale * words[i + 1];
    normals[i] = radius * std::cos(angle);
    normals[i + 1] = radius * std::sin(angle);
  }
}

// In [0, 1), with as many bits as T holds exactly: rounding must not reach 1.
template <typename T>
T Uniform(uint32_t word) {
  if constexpr (std::is_same_v<T, double>) return word * 0x1p-32;
  if constexpr (std::is_same_v<T, float>) return static_cast<float>(word >> 8) * 0x1p-24f;
  if constexpr (std::is_same_v<T, BFloat16>) return T(static_cast<float>(word >> 24) * 0x1p-8f);
  return Cast<T>(static_cast<float>(word >> 21) * 0x1p-11f);
}

void CheckRegion(absl::Span<const IndexSet> region, absl::Span<const int64_t> shape,
                 const Tensor& out) {
  DT_CHECK(IsFloat(out.dtype()) && out.is_contiguous());
  DT_CHECK(region.size() == shape.size() && region.size() == out.shape().size());
  for (size_t d = 0; d < region.size(); ++d) {
    DT_CHECK(region[d].size() == out.size(static_cast<int>(d)));
    DT_CHECK(region[d].empty() || region[d].runs().back().end() <= shape[d]);
  }
}

}  // namespace

absl::Status RandomNormal(Device& device, absl::Span<const IndexSet> region,
                          absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                          double mean, double stddev, const Tensor& out) {
  CheckRegion(region, shape, out);
  return device.Launch(
      "RandomNormal", [=, runs = GlobalRuns(region, shape), dtype = out.dtype(), data = out.raw()] {
        VisitFloat(dtype, [&](auto t) {
          using T = decltype(t);
          ForEachWords(runs, {seed, stream},
                       [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
                         double normals[kWords];
                         NormalPairs(words, (skip + n + 3) / 4 * 4, normals);
                         T* dst = static_cast<T*>(data) + done;
                         for (int64_t i = 0; i < n; ++i) {
                           dst[i] = Cast<T>(mean + stddev * normals[skip + i]);
                         }
                       });
        });
      });
}

absl::Status RandomUniform(Device& device, absl::Span<const IndexSet> region,
                           absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream,
                           const Tensor& out) {
  CheckRegion(region, shape, out);
  return device.Launch("RandomUniform", [=, runs = GlobalRuns(region, shape), dtype = out.dtype(),
                                         data = out.raw()] {
    VisitFloat(dtype, [&](auto t) {
      using T = decltype(t);
      ForEachWords(runs, {seed, stream},
                   [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
                     T* dst = static_cast<T*>(data) + done;
                     for (int64_t i = 0; i < n; ++i) dst[i] = Uniform<T>(words[skip + i]);
                   });
    });
  });
}

absl::Status Dropout(Device& device, const Tensor& x, absl::Span<const IndexSet> region,
                     absl::Span<const int64_t> shape, uint64_t seed, uint64_t stream, double p,
                     const Tensor& out) {
  CheckRegion(region, shape, out);
  DT_CHECK(x.shape() == out.shape() && x.dtype() == out.dtype());
  DT_CHECK(p >= 0 && p <= 1);
  const Packed packed(x);
  // The uniform numbers of f32, whatever the type: a mask is one for all types.
  const auto threshold = static_cast<uint32_t>(std::ceil(p * 0x1p24));
  const double scale = p < 1 ? 1 / (1 - p) : 0;
  return device.Launch("Dropout", [=, runs = GlobalRuns(region, shape), dtype = out.dtype(),
                                   data = static_cast<std::byte*>(out.raw())] {
    std::vector<std::byte> scratch;
    const auto* src = static_cast<const std::byte*>(packed.Get(scratch));
    ForEachWords(
        runs, {seed, stream}, [&](const uint32_t* words, int64_t skip, int64_t n, int64_t done) {
          const int64_t offset = done * SizeOf(dtype);
          simd::Dropout(dtype, src + offset, words + skip, threshold, scale, data + offset, n);
        });
  });
}

}  // namespace dtensor::kernels
