#include "dtensor/runtime/kernels/cuda/extremum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/index_lookup.h"
#include "dtensor/runtime/kernels/cuda/ids-inl.h"
#include "dtensor/runtime/kernels/cuda/index_lookup-inl.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/reduce_op-inl.h"
#include "dtensor/runtime/kernels/cuda/reduction-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// A key that compares as the value does: equal values have equal keys, and NaN has the largest.
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

// Whether `a` has the larger key or, of equal keys, the lower position.
__device__ bool Precedes(Candidate a, Candidate b) {
  return a.key > b.key || (a.key == b.key && a.position < b.position);
}

struct Better {
  __device__ Candidate operator()(Candidate a, Candidate b) const { return Precedes(b, a) ? b : a; }
  // For a shard without elements: every other shard is larger, or has a lower index.
  __device__ static Candidate Identity() { return {kLeast, kMost}; }
};

template <typename T>
struct CandidateTerms {
  using Element = T;
  const void* x;
  StridedLoop<1> kept;

  struct Term {
    const T* row;
    __device__ Candidate operator()(T value, int64_t i) const { return {OrderedKey(value), i}; }
  };
  __device__ Term Of(int64_t output) const {
    return {static_cast<const T*>(x) + OffsetsOf(kept, static_cast<uint64_t>(output)).at[0]};
  }
};

struct StoreStats {
  IndexRuns indices;
  int64_t* stats;

  __device__ void operator()(int64_t output, Candidate best) const {
    stats[2 * output] = best.key;
    stats[2 * output + 1] = best.position == kMost ? kMost : indices.At(best.position);
  }
};

__global__ void ArgMaxMergeKernel(ArgMaxMergeArgs a) {
  ForEachPiece<int64_t>(a.rows, [&](int64_t r) {
    Candidate best = Better::Identity();
    for (int64_t p = 0; p < a.shards; ++p) {
      const int64_t at = 2 * (p * a.rows + r);
      best = Better()(best, {ElementOf<int64_t>(a.stats, at), ElementOf<int64_t>(a.stats, at + 1)});
    }
    a.out[r] = best.position;
  });
}

// 1 for each element that is equal to its output's extremum.
template <typename T>
struct TieTerms {
  using Element = T;
  const void *x, *extremum;
  StridedLoop<2> kept;

  struct Term {
    const T* row;
    Compute<T> wanted;
    __device__ int64_t operator()(T value, int64_t) const { return Widen(value) == wanted; }
  };
  __device__ Term Of(int64_t output) const {
    const Offsets<2> from = OffsetsOf(kept, static_cast<uint64_t>(output));
    return {static_cast<const T*>(x) + from.at[0],
            Widen(static_cast<const T*>(extremum)[from.at[1]])};
  }
};

struct StoreCount {
  int64_t* count;
  __device__ void operator()(int64_t output, int64_t ties) const { count[output] = ties; }
};

// The loop over the first N operands, along the dimensions in which `count`, which is contiguous,
// is broadcast; or along the others.
template <int N>
StridedLoop<N> DimsOf(const StridedLoop<3>& loop, bool broadcast) {
  Dims shape, strides[N];
  for (int d = loop.ndim() - 1; d >= 0; --d) {
    if ((loop.stride(d, 2) == 0) != broadcast) continue;
    shape.push_back(loop.size(d));
    for (int k = 0; k < N; ++k) strides[k].push_back(loop.stride(d, k));
  }
  std::array<absl::Span<const int64_t>, N> spans;
  std::copy_n(strides, N, spans.begin());
  return StridedLoop<N>(shape, spans);
}

// As in PyTorch: if no element is equal, the quotient is NaN, and so is its product with zero.
template <typename T>
__global__ void ShareAmongTiesKernel(ShareAmongTiesArgs a, int64_t n) {
  using C = Compute<T>;
  Map<T>(Inputs<T, T, T, int64_t>(), a.operands, n, [](T x, T extremum, T dy, int64_t count) {
    const C is_tie = Widen(x) == Widen(extremum) ? C{1} : C{0};
    return Round<T>(count == 0 ? std::numeric_limits<C>::quiet_NaN()
                               : is_tie * (Widen(dy) / static_cast<C>(count)));
  });
}

// The best of this lane's elements that `before` precedes.
template <typename T, int kLanes>
__device__ Candidate BestOfLane(const RowInput<T>& x, int lane, Candidate before) {
  Candidate best = Better::Identity();
  ForEachPack<T, kLanes>(x.n, lane, [&](int64_t i) {
    const Pack<T, kPack<T>> values = x.Load(i);
    for (int v = 0; v < kPack<T> && i + v < x.n; ++v) {
      const Candidate candidate = {OrderedKey(values.at[v]), i + v};
      if (Precedes(before, candidate)) best = Better()(best, candidate);
    }
  });
  return best;
}

// Each lane knows the best of its elements that are not taken: at first, and after one of them was,
// it looks for it.
template <typename T, int kLanes>
__global__ void TopKKernel(TopKArgs a, int64_t rows) {
  ForEachRow<kLanes>(rows, [&](int64_t r, int lane) {
    const RowInput<T> x(a.rows, 0, r);
    Candidate taken = {kMost, -1}, mine = taken;  // it precedes all elements
    for (int64_t at = r * a.k; at < (r + 1) * a.k; ++at) {
      if (mine.position == taken.position) mine = BestOfLane<T, kLanes>(x, lane, taken);
      taken = FoldLanes<kLanes>(mine, Better());
      if (mine.position != taken.position) continue;
      static_cast<T*>(a.values)[at] = x.row[taken.position * x.stride];
      a.indices[at] = taken.position;
    }
  });
}

// A row of indices, and the row of x or dy beside it.
template <typename T>
struct PickedRow {
  const int64_t* indices;
  const T* other;
  int64_t row, stride, other_stride;

  __device__ int64_t index(int64_t j) const { return indices[j * stride]; }
  __device__ T at(int64_t i) const { return other[i * other_stride]; }
};

// On the GPU: calls fn(row, pick, j) for this thread's picks; j is the pick's number in its row.
template <typename T, typename Fn>
__device__ void ForEachPick(const RowOperands<2>& rows, int64_t picks, Fn fn) {
  WithIndex(picks, [&](auto n) {
    using Index = decltype(n);
    ForEachPiece<Index>(n, [&](Index pick) {
      const Index k = static_cast<Index>(rows.n), row = pick / k;
      const Offsets<2> from = OffsetsOf(rows.loop, row);
      fn(PickedRow<T>{reinterpret_cast<const int64_t*>(rows.in[0]) + from.at[0],
                      reinterpret_cast<const T*>(rows.in[1]) + from.at[1],
                      static_cast<int64_t>(row), rows.stride[0], rows.stride[1]},
         static_cast<int64_t>(pick), static_cast<int64_t>(pick - row * k));
    });
  });
}

template <typename Bits>
__global__ void TakeKernel(TakeArgs a, IndexCheck check, int64_t picks) {
  ForEachPick<Bits>(a.rows, picks, [&](const PickedRow<Bits>& x, int64_t pick, int64_t j) {
    const int64_t i = x.index(j);
    if (check.Passes(i, pick)) static_cast<Bits*>(a.y)[pick] = x.at(i);
  });
}

// The first place where an element was taken adds up all of them.
template <typename T>
__global__ void TakeGradKernel(TakeGradArgs a, int64_t picks) {
  ForEachPick<T>(a.rows, picks, [&](const PickedRow<T>& dy, int64_t, int64_t j) {
    const int64_t index = dy.index(j);
    if (index < 0 || index >= a.n) return;  // Take has failed, which the host may not know yet
    for (int64_t i = 0; i < j; ++i) {
      if (dy.index(i) == index) return;
    }
    Compute<T> sum = Widen(dy.at(j));
    for (int64_t i = j + 1; i < a.rows.n; ++i) {
      if (dy.index(i) == index) sum += Widen(dy.at(i));
    }
    static_cast<T*>(a.dx)[dy.row * a.n + index] = Round<T>(sum);
  });
}

}  // namespace

absl::Status ArgMaxStats(Device& device, const char* kernel, const ArgMaxStatsArgs& args) {
  const int64_t outputs = ElementsOf(args.kept), n[] = {args.n}, stride[] = {args.stride};
  const StridedLoop<1> reduced(n, {stride});
  return WithIndexRuns(device, kernel, IndexLookup(args.indices), [&](const IndexRuns& indices) {
    return VisitDType(args.dtype, [&](auto t) {
      return ReduceTerms<Better>(device, kernel, outputs, reduced,
                                 CandidateTerms<decltype(t)>{args.x, args.kept},
                                 StoreStats{indices, args.stats});
    });
  });
}

absl::Status ArgMaxMerge(Device& device, const char* kernel, const ArgMaxMergeArgs& args) {
  if (args.rows == 0) return device.failure();
  return Launch(device, kernel, BlocksFor(args.rows), kThreads, ArgMaxMergeKernel, args);
}

absl::Status CountTies(Device& device, const char* kernel, const CountTiesArgs& args) {
  if (args.loop.empty()) {
    return device.FillBytes(args.count, 0, args.outputs * SizeOf(DType::kI64));
  }
  const StridedLoop<2> kept = DimsOf<2>(args.loop, false);
  const StridedLoop<1> reduced = DimsOf<1>(args.loop, true);
  return VisitDType(args.dtype, [&](auto t) {
    return ReduceTerms<Combine<ReduceOp::kSum, int64_t>>(
        device, kernel, args.outputs, reduced, TieTerms<decltype(t)>{args.x, args.extremum, kept},
        StoreCount{args.count});
  });
}

absl::Status ShareAmongTies(Device& device, const char* kernel, const ShareAmongTiesArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, ShareAmongTiesKernel<decltype(t)>, args);
  });
}

absl::Status TopK(Device& device, const char* kernel, const TopKArgs& args) {
  const int64_t rows = ElementsOf(args.rows.loop);
  if (rows == 0 || args.k == 0) return device.failure();
  return VisitDType(args.dtype, [&](auto t) {
    return WithLanes(args.rows.n, [&](auto lanes) {
      return Launch(device, kernel, BlocksForRows<lanes>(rows), kThreads,
                    TopKKernel<decltype(t), lanes>, args, rows);
    });
  });
}

absl::Status Take(Device& device, const char* kernel, const TakeArgs& args) {
  const int64_t picks = ElementsOf(args.rows.loop) * args.rows.n;
  if (picks == 0) return device.failure();
  return WithBits(SizeOf(args.dtype), [&](auto bits) {
    return Launch(device, kernel, BlocksFor(picks), kThreads, TakeKernel<decltype(bits)>, args,
                  IndexCheck(device, kernel, "index", args.n), picks);
  });
}

absl::Status TakeGrad(Device& device, const char* kernel, const TakeGradArgs& args) {
  DT_RETURN_IF_ERROR(device.FillBytes(args.dx, 0, args.dx_bytes));
  const int64_t picks = ElementsOf(args.rows.loop) * args.rows.n;
  if (picks == 0) return absl::OkStatus();
  return VisitFloat(args.dtype, [&](auto t) {
    return Launch(device, kernel, BlocksFor(picks), kThreads, TakeGradKernel<decltype(t)>, args,
                  picks);
  });
}

}  // namespace dtensor::kernels::cuda
