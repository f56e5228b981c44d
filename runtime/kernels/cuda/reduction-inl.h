// Reductions: for each output, one value computed from its terms. A kernel supplies, as plain
// values, the terms, how two values are combined, and where results go.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// The elements of x, in the type in which they are computed. Like every type of terms, it has
// `kept`, a loop over the outputs whose first operand is x, and Of(output), which returns `row`,
// the output's first element, and `value`, a function that makes a term from element `i` of the
// output.
template <typename T>
struct ElementTerms {
  using Element = T;
  const void* x;
  StridedLoop<1> kept;

  struct Term {
    const T* row;
    __device__ auto operator()(T value, int64_t) const {
      return static_cast<Compute<T>>(Widen(value));
    }
  };
  __device__ Term Of(int64_t output) const {
    return {static_cast<const T*>(x) + OffsetsOf(kept, static_cast<uint64_t>(output)).at[0]};
  }
};

// On the GPU: calls fn(value, t) for V terms t from `i` on, a multiple of V, up to `end`, in order.
// The terms are read together if they fit (FitsPacks).
template <int V, typename Index, typename T, typename Fn>
__device__ void ForEachOfPack(const T* x, const StridedLoop<1>& loop, bool fits, int64_t i,
                              int64_t end, Fn fn) {
  if (fits && i + V <= end) {
    const T* const from = x + OffsetsOf(loop, static_cast<Index>(i)).at[0];
    const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(from);
    for (int v = 0; v < V; ++v) fn(pack.at[v], i + v);
    return;
  }
  for (int64_t t = i; t < Lesser(i + V, end); ++t) {
    fn(x[OffsetsOf(loop, static_cast<Index>(t)).at[0]], t);
  }
}

namespace internal {

template <typename Op>
using ValueOf = decltype(Op::Identity());

// Each output's terms are split into parts of `part` neighbours, in whole packs; the last part is
// shorter. With one part, the kernel writes results; with several, partial results [parts,
// outputs], which a second pass reduces like any other columns. For columns, that many groups of a
// block's threads share a part.
struct Split {
  int64_t terms, part, parts;
  bool partial;
  int groups;
};

template <typename Op, typename Terms, typename Store>
struct ReductionPass {
  int64_t outputs;
  StridedLoop<1> reduced;
  Terms terms;
  Store store;
  Split split;
  ValueOf<Op>* partial;

  __device__ void Put(int64_t part, int64_t output, ValueOf<Op> value) const {
    if (split.partial) {
      partial[part * outputs + output] = value;
    } else {
      store(output, value);
    }
  }
};

// A group of lanes for each part of each output: for terms that are adjacent in memory.
template <int kLanes, typename Op, typename Terms, typename Store>
__global__ void ReduceRowsKernel(const __grid_constant__ ReductionPass<Op, Terms, Store> p) {
  constexpr int V = kPack<typename Terms::Element>;
  ForEachRow<kLanes>(p.outputs * p.split.parts, [&](int64_t row, int lane) {
    const int64_t output = row % p.outputs, part = row / p.outputs;
    const auto term = p.terms.Of(output);
    const int64_t begin = part * p.split.part;
    const int64_t end = Lesser(begin + p.split.part, p.split.terms);
    const bool fits = FitsPacks<V>(term.row, p.reduced, 0);
    ValueOf<Op> value = Op::Identity();
    WithIndex(p.split.terms, [&](auto n) {
      for (int64_t i = begin + lane * V; i < end; i += kLanes * V) {
        ForEachOfPack<V, decltype(n)>(
            term.row, p.reduced, fits, i, end,
            [&](auto element, int64_t t) { value = Op()(value, term(element, t)); });
      }
    });
    value = FoldLanes<kLanes>(value, Op());
    if (lane == 0) p.Put(part, output, value);
  });
}

// Adds a group's share of a part of V adjacent outputs, from `output` on: every split.groups-th
// term, in ascending order, in chains whose results are added. offset(i) is the position of an
// output's term i, relative to its first.
template <int V, typename Op, typename Terms, typename Store, typename Offset>
__device__ void AddColumnTerms(const ReductionPass<Op, Terms, Store>& p, int64_t output,
                               int64_t part, int group, Offset offset, ValueOf<Op> (&total)[V]) {
  using Columns = Pack<typename Terms::Element, V>;
  constexpr int64_t kChain = 64;
  constexpr int kAhead = 4;  // terms that are read before they are added
  typename Terms::Term term[V];
  for (int v = 0; v < V; ++v) term[v] = p.terms.Of(output + v);
  const auto load = [&](int64_t i) {
    return *reinterpret_cast<const Columns*>(term[0].row + offset(i));
  };
  const int64_t step = p.split.groups;
  const int64_t end = Lesser((part + 1) * p.split.part, p.split.terms);
  for (int64_t i = part * p.split.part + group; i < end;) {
    ValueOf<Op> chain[V];
    for (int v = 0; v < V; ++v) chain[v] = Op::Identity();
    const auto add = [&](const Columns& columns, int64_t t) {
      for (int v = 0; v < V; ++v) chain[v] = Op()(chain[v], term[v](columns.at[v], t));
    };
    const int64_t stop = Lesser(i + kChain * step, end);
    for (; i + (kAhead - 1) * step < stop; i += kAhead * step) {
      Columns columns[kAhead];
      for (int a = 0; a < kAhead; ++a) columns[a] = load(i + a * step);
      for (int a = 0; a < kAhead; ++a) add(columns[a], i + a * step);
    }
    for (; i < stop; i += step) add(load(i), i);
    for (int v = 0; v < V; ++v) total[v] = Op()(total[v], chain[v]);
  }
}

// Combines the values of all groups of a block's threads, by a tree; the first of `groups` has the
// result. A few values at a time, since shared memory is small.
template <int V, typename Op>
__device__ void FoldGroups(int groups, ValueOf<Op> (&values)[V]) {
  constexpr int kMost = kThreads / 2;  // threads that pass on their values
  constexpr int kAtOnce = std::min<int>(V, 64 / sizeof(ValueOf<Op>));
  static_assert(V % kAtOnce == 0);
  DT_SHARED(ValueOf<Op>, given, kMost * kAtOnce);
  const int thread = static_cast<int>(threadIdx.x);
  for (int rest = kThreads / 2; rest >= kThreads / groups; rest /= 2) {
#pragma unroll
    for (int first = 0; first < V; first += kAtOnce) {
      if (thread >= rest && thread < 2 * rest) {
        for (int v = 0; v < kAtOnce; ++v) given[v * kMost + thread - rest] = values[first + v];
      }
      __syncthreads();
      if (thread < rest) {
        for (int v = 0; v < kAtOnce; ++v) {
          values[first + v] = Op()(values[first + v], given[v * kMost + thread]);
        }
      }
      __syncthreads();
    }
  }
}

// A block for each part of as many columns as a group has threads, with V outputs per column, so
// that neighbouring threads read neighbouring memory. V adjacent outputs are read at once, and each
// adds its terms in the same order.
template <int V, typename Op, typename Terms, typename Store>
__device__ void ReduceColumns(const ReductionPass<Op, Terms, Store>& p) {
  const int lanes = kThreads / p.split.groups;
  const int group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
  const int64_t columns = p.outputs / V, tiles = (columns + lanes - 1) / lanes;
  for (int64_t piece = blockIdx.x; piece < tiles * p.split.parts; piece += gridDim.x) {
    const int64_t column = piece % tiles * lanes + lane, part = piece / tiles;
    ValueOf<Op> total[V];
    for (int v = 0; v < V; ++v) total[v] = Op::Identity();
    const auto add = [&](auto offset) {
      if (column < columns) AddColumnTerms<V>(p, column * V, part, group, offset, total);
    };
    if (p.reduced.ndim() == 1) {
      add([stride = p.reduced.stride(0, 0)](int64_t i) { return i * stride; });
    } else {
      add([&](int64_t i) { return OffsetsOf(p.reduced, static_cast<uint64_t>(i)).at[0]; });
    }
    FoldGroups<V, Op>(p.split.groups, total);
    if (group > 0 || column >= columns) continue;
    for (int v = 0; v < V; ++v) p.Put(part, column * V + v, total[v]);
  }
}

// Whether each row of the outputs' terms has whole packs and is aligned for them.
template <int V, typename Op, typename Terms, typename Store>
__device__ bool HasPackedColumns(const ReductionPass<Op, Terms, Store>& p) {
  const auto* const x = static_cast<const typename Terms::Element*>(p.terms.x);
  bool fits = p.outputs % V == 0 && FitsPacks<V>(x, p.terms.kept, 0);
  for (int d = 0; d < p.reduced.ndim(); ++d) fits = fits && p.reduced.stride(d, 0) % V == 0;
  return fits;
}

// The least number of blocks per SM, for values that leave enough registers.
template <typename Op, int V>
inline constexpr int kColumnBlocks = sizeof(ValueOf<Op>) * V <= 32 ? 4 : 1;

template <typename Op, typename Terms, typename Store>
__global__ void __launch_bounds__(kThreads, kColumnBlocks<Op, kPack<typename Terms::Element>>)
    ReduceColumnsKernel(const __grid_constant__ ReductionPass<Op, Terms, Store> p) {
  constexpr int V = kPack<typename Terms::Element>;
  if (HasPackedColumns<V>(p)) return ReduceColumns<V>(p);
  ReduceColumns<1>(p);
}

// Whether neighbouring outputs are adjacent, and their terms are not.
template <int N>
bool ReadsColumns(const StridedLoop<N>& kept, const StridedLoop<1>& reduced) {
  return kept.inner_size() > 1 && kept.inner_stride(0) == 1 && reduced.inner_stride(0) != 1;
}

// The number of groups, a power of 2: as many as fit into a block with their `most` lanes, if each
// has at least `least` terms of a part or of all.
inline int GroupsOf(int64_t packs, int64_t terms, int64_t most, int64_t least) {
  const auto lanes = std::min<int64_t>(most, std::bit_ceil(static_cast<uint64_t>(packs)));
  const auto wanted = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(terms / least, 1)));
  return static_cast<int>(std::min<int64_t>(kThreads / lanes, wanted));
}

// As many parts as keep a GPU busy, depending on the shape and the type alone, and at most as many
// values of `bytes` as scratch has room for.
inline Split SplitInto(int64_t wanted, int64_t outputs, int64_t terms, int64_t least, int64_t bytes,
                       int groups) {
  const int64_t room = kCudaScratchBytes / bytes / outputs;
  const int64_t parts = std::min({(terms + least - 1) / least, wanted, room});
  if (parts <= 1) return {terms, std::max<int64_t>(terms, 1), 1, false, groups};
  const int64_t part = PartOf(terms, parts, kPack<std::byte>);
  return {terms, part, (terms + part - 1) / part, true, groups};
}

// The split for columns in packs of V outputs, or for rows if V is 0.
inline Split SplitOf(int64_t outputs, int64_t terms, int V, int64_t bytes) {
  if (V == 0) return SplitInto((int64_t{1} << 10) / outputs, outputs, terms, 4096, bytes, 1);
  constexpr int64_t kOfThread = 16, kBlocks = 4096;  // terms at least; blocks that are enough
  const int64_t packs = (outputs + V - 1) / V;
  const int groups = GroupsOf(packs, terms, kWarp, kOfThread);
  const int64_t tile = kThreads / groups, tiles = (packs + tile - 1) / tile;
  return SplitInto(kBlocks / tiles, outputs, terms, groups * kOfThread, bytes, groups);
}

template <typename Op, typename Terms, typename Store>
absl::Status LaunchPass(Device& device, const char* name,
                        const ReductionPass<Op, Terms, Store>& pass) {
  if (ReadsColumns(pass.terms.kept, pass.reduced)) {
    const int64_t lanes = kPack<typename Terms::Element> * (kThreads / pass.split.groups);
    const int64_t blocks = (pass.outputs + lanes - 1) / lanes * pass.split.parts;
    return Launch(device, name, BlocksForRows<kThreads>(blocks), kThreads,
                  ReduceColumnsKernel<Op, Terms, Store>, pass);
  }
  const int64_t pieces = pass.outputs * pass.split.parts;
  return WithLanes(pass.split.part, [&](auto lanes) {
    return LaunchRows<lanes>(device, name, pieces, ReduceRowsKernel<lanes, Op, Terms, Store>, pass);
  });
}

}  // namespace internal

// On the GPU store(output, value) is called once for each output, with its terms combined by Op(),
// one for each element that `reduced` visits. Op() must be associative apart from rounding, and
// commutative, and Op::Identity() is the value of no terms. The order depends on shapes and strides
// alone.
template <typename Op, typename Terms, typename Store>
absl::Status ReduceTerms(Device& device, const char* name, int64_t outputs,
                         const StridedLoop<1>& reduced, const Terms& terms, const Store& store) {
  using Value = internal::ValueOf<Op>;
  if (outputs == 0) return device.failure();
  const int packed =
      internal::ReadsColumns(terms.kept, reduced) ? kPack<typename Terms::Element> : 0;
  const internal::Split split =
      internal::SplitOf(outputs, ElementsOf(reduced), packed, sizeof(Value));
  auto* const partial = static_cast<Value*>(CudaScratchOf(device));
  DT_RETURN_IF_ERROR((internal::LaunchPass<Op, Terms, Store>(
      device, name, {outputs, reduced, terms, store, split, partial})));
  if (!split.partial) return absl::OkStatus();
  // Partial results are few, and still in the caches.
  const int groups =
      internal::GroupsOf((outputs + kPack<Value> - 1) / kPack<Value>, split.parts, kWarp / 4, 8);
  const int64_t sizes[] = {outputs}, one[] = {1}, parts[] = {split.parts};
  return internal::LaunchPass<Op, ElementTerms<Value>, Store>(
      device, name,
      {outputs,
       StridedLoop<1>(parts, {sizes}),
       {partial, StridedLoop<1>(sizes, {one})},
       store,
       {split.parts, split.parts, 1, false, groups},
       nullptr});
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_
