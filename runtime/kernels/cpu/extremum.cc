#include "dtensor/runtime/kernels/cpu/extremum.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "dtensor/runtime/device/index_error.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

template <typename T>
Compute<T> Widened(T x) {
  return static_cast<Compute<T>>(x);
}

// A key that compares as the value does: equal values have equal keys, and NaN has the largest.
template <typename T>
int64_t OrderedKey(T x) {
  if constexpr (kIsFloat<T>) {
    const double value = Widened(x);
    if (value != value) return kMost;
    const auto bits = std::bit_cast<int64_t>(value == 0 ? 0.0 : value);
    return bits < 0 ? bits ^ kMost : bits;
  } else {
    return x;
  }
}

// The first position of the largest of n > 0 elements.
template <typename T>
int64_t ArgMaxOf(DType dtype, const T* x, int64_t n, int64_t stride) {
  if constexpr (kIsFloat<T>) {
    if (stride == 1) {
      Compute<T> max;
      simd::ReduceRow(ReduceOp::kMax, dtype, x, n, &max);
      const auto is_max = [&](T v) {
        return max != max ? Widened(v) != Widened(v) : Widened(v) == max;
      };
      return std::find_if(x, x + n, is_max) - x;
    }
  }
  int64_t best = 0, best_key = OrderedKey(x[0]);
  for (int64_t i = 1; i < n; ++i) {
    const int64_t key = OrderedKey(x[i * stride]);
    if (key <= best_key) continue;
    best = i;
    best_key = key;
  }
  return best;
}

template <typename T>
void ArgMaxAll(const ArgMaxStatsArgs& a) {
  int64_t* stats = a.stats;
  const int64_t inner = a.kept.inner_size(), step = a.kept.inner_stride(0);
  a.kept.ForEachRow([&](const auto& offsets) {
    for (int64_t i = 0; i < inner; ++i, stats += 2) {
      // For a shard without elements: every other shard is larger, or has a lower index.
      stats[0] = kLeast;
      stats[1] = kMost;
      if (a.n == 0) continue;
      const T* x = static_cast<const T*>(a.x) + offsets[0] + i * step;
      const int64_t best = ArgMaxOf(a.dtype, x, a.n, a.stride);
      stats[0] = OrderedKey(x[best * a.stride]);
      stats[1] = a.indices.At(best);
    }
  });
}

void RunArgMaxMerge(const ArgMaxMergeArgs& a) {
  std::vector<std::byte> scratch;
  const auto* stats = static_cast<const int64_t*>(Packed(a.stats, scratch));
  for (int64_t r = 0; r < a.rows; ++r) {
    int64_t key = kLeast, index = kMost;
    for (int64_t p = 0; p < a.shards; ++p) {
      const int64_t* shard = stats + 2 * (p * a.rows + r);
      if (shard[0] < key || (shard[0] == key && shard[1] >= index)) continue;
      key = shard[0];
      index = shard[1];
    }
    a.out[r] = index;
  }
}

template <typename T>
void CountAll(const CountTiesArgs& a) {
  std::fill_n(a.count, a.outputs, 0);
  const int64_t n = a.loop.inner_size();
  const int64_t steps[] = {a.loop.inner_stride(0), a.loop.inner_stride(1), a.loop.inner_stride(2)};
  a.loop.ForEachRow([&](const auto& offsets) {
    const T* x = static_cast<const T*>(a.x) + offsets[0];
    const T* extremum = static_cast<const T*>(a.extremum) + offsets[1];
    int64_t* count = a.count + offsets[2];
    if (steps[2] == 0) {
      const Compute<T> wanted = Widened(*extremum);
      int64_t equal = 0;
      for (int64_t i = 0; i < n; ++i) equal += Widened(x[i * steps[0]]) == wanted;
      *count += equal;
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      count[i * steps[2]] += Widened(x[i * steps[0]]) == Widened(extremum[i * steps[1]]);
    }
  });
}

// As in PyTorch: if no element is equal, the quotient is NaN, and so is its product with zero.
template <typename T>
void ShareAll(const ShareAmongTiesArgs& a) {
  using C = Compute<T>;
  ForEachPiece(a.operands, [&](const void* const* in, void* const* out, int64_t n) {
    const auto* x = static_cast<const T*>(in[0]);
    const auto* extremum = static_cast<const T*>(in[1]);
    const auto* dy = static_cast<const T*>(in[2]);
    const auto* count = static_cast<const int64_t*>(in[3]);
    auto* dx = static_cast<T*>(out[0]);
    for (int64_t i = 0; i < n; ++i) {
      const C is_tie = Widened(x[i]) == Widened(extremum[i]) ? C{1} : C{0};
      dx[i] = Cast<T>(count[i] == 0 ? std::numeric_limits<C>::quiet_NaN()
                                    : is_tie * (Widened(dy[i]) / static_cast<C>(count[i])));
    }
  });
}

struct Candidate {
  int64_t key, index;
};

// Whether `a` is in front of `b` among the largest.
bool Precedes(const Candidate& a, const Candidate& b) {
  return a.key > b.key || (a.key == b.key && a.index < b.index);
}

// The k > 0 largest of n elements, in order. Until all are seen, they are a heap with the last of
// them on top: most elements cost one comparison.
template <typename T>
void FindLargest(const T* x, int64_t n, int64_t k, std::vector<Candidate>& top) {
  top.clear();
  for (int64_t i = 0; i < k; ++i) top.push_back({OrderedKey(x[i]), i});
  std::make_heap(top.begin(), top.end(), Precedes);
  for (int64_t i = k; i < n; ++i) {
    const int64_t key = OrderedKey(x[i]);
    if (key <= top.front().key) continue;  // of ties, the first stay
    std::pop_heap(top.begin(), top.end(), Precedes);
    top.back() = {key, i};
    std::push_heap(top.begin(), top.end(), Precedes);
  }
  std::sort_heap(top.begin(), top.end(), Precedes);
}

template <typename T>
void TopKAll(const TopKArgs& a) {
  if (a.k == 0) return;
  std::vector<Candidate> top;
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    T* values = static_cast<T*>(a.values) + first * a.k;
    int64_t* indices = a.indices + first * a.k;
    for (int64_t r = 0; r < count; ++r) {
      const T* x = static_cast<const T*>(in[0]) + r * stride[0];
      FindLargest(x, a.rows.n, a.k, top);
      for (const Candidate& one : top) {
        *values++ = x[one.index];
        *indices++ = one.index;
      }
    }
  });
}

template <typename T>
absl::Status TakeAll(const TakeArgs& a) {
  const RowOperands<2>& rows = a.rows;
  absl::Status status;
  int64_t at = 0;  // in y
  rows.loop.ForEachRow([&](const auto& offsets) {
    for (int64_t r = 0; r < rows.loop.inner_size(); ++r) {
      const auto* index =
          reinterpret_cast<const int64_t*>(rows.in[0]) + offsets[0] + r * rows.loop.inner_stride(0);
      const T* x =
          reinterpret_cast<const T*>(rows.in[1]) + offsets[1] + r * rows.loop.inner_stride(1);
      for (int64_t j = 0; j < rows.n && status.ok(); ++j, ++at) {
        const int64_t i = index[j * rows.stride[0]];
        if (i < 0 || i >= a.n) {
          status = ToStatus(IndexError{"index", i, at, a.n});
        } else {
          static_cast<T*>(a.y)[at] = x[i * rows.stride[1]];
        }
      }
    }
  });
  return status;
}

// Other indices have made Take fail.
template <typename T>
void AddTo(Compute<T>* sums, int64_t n, const int64_t* index, const T* dy, int64_t k) {
  for (int64_t j = 0; j < k; ++j) {
    if (0 <= index[j] && index[j] < n) sums[index[j]] += static_cast<Compute<T>>(dy[j]);
  }
}

// Sums of narrow floats stay in f32 until they are complete.
template <typename T>
void TakeGradAll(const TakeGradArgs& a) {
  if (a.dx_bytes == 0) return;
  std::memset(a.dx, 0, a.dx_bytes);
  if (a.rows.n == 0) return;
  constexpr bool kIsNarrow = !std::is_same_v<T, Compute<T>>;
  std::vector<Compute<T>> sums(kIsNarrow ? a.n : 0);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      const auto* index = static_cast<const int64_t*>(in[0]) + r * stride[0];
      const T* dy = static_cast<const T*>(in[1]) + r * stride[1];
      T* dx = static_cast<T*>(a.dx) + (first + r) * a.n;
      if constexpr (kIsNarrow) {
        std::fill(sums.begin(), sums.end(), Compute<T>{0});
        AddTo(sums.data(), a.n, index, dy, a.rows.n);
        RoundAll<T>(sums.data(), dx, a.n);
      } else {
        AddTo(dx, a.n, index, dy, a.rows.n);
      }
    }
  });
}

}  // namespace

absl::Status ArgMaxStats(Device& device, const char* kernel, const ArgMaxStatsArgs& args) {
  return Launch(device, kernel, args, [](const ArgMaxStatsArgs& a) {
    VisitDType(a.dtype, [&](auto t) { ArgMaxAll<decltype(t)>(a); });
  });
}

absl::Status ArgMaxMerge(Device& device, const char* kernel, const ArgMaxMergeArgs& args) {
  return Launch(device, kernel, args, RunArgMaxMerge);
}

absl::Status CountTies(Device& device, const char* kernel, const CountTiesArgs& args) {
  return Launch(device, kernel, args, [](const CountTiesArgs& a) {
    VisitDType(a.dtype, [&](auto t) { CountAll<decltype(t)>(a); });
  });
}

absl::Status ShareAmongTies(Device& device, const char* kernel, const ShareAmongTiesArgs& args) {
  return Launch(device, kernel, args, [](const ShareAmongTiesArgs& a) {
    VisitFloat(a.dtype, [&](auto t) { ShareAll<decltype(t)>(a); });
  });
}

absl::Status TopK(Device& device, const char* kernel, const TopKArgs& args) {
  return Launch(device, kernel, args, [](const TopKArgs& a) {
    VisitDType(a.dtype, [&](auto t) { TopKAll<decltype(t)>(a); });
  });
}

absl::Status Take(Device& device, const char* kernel, const TakeArgs& args) {
  return Launch(device, kernel, args, [](const TakeArgs& a) {
    return VisitDType(a.dtype, [&](auto t) { return TakeAll<decltype(t)>(a); });
  });
}

absl::Status TakeGrad(Device& device, const char* kernel, const TakeGradArgs& args) {
  return Launch(device, kernel, args, [](const TakeGradArgs& a) {
    VisitFloat(a.dtype, [&](auto t) { TakeGradAll<decltype(t)>(a); });
  });
}

}  // namespace dtensor::kernels::cpu
