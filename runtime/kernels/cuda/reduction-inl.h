// Reductions: for each output, one value out of its terms. A kernel brings what the terms are, how
// two values become one, and where the result goes, as plain values.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// The elements of x, in the type that they are computed in. As all types of terms: `kept` goes
// through the outputs, its first operand is x, and Of(output) gives `row`, the output's first
// element, and a function that makes a term of element `i` of the output, which is `value`.
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

// On the GPU: fn(value, t) for V terms t from `i` on, a multiple of V, as far as they are before
// `end`; read at once if they fit (FitsPacks), and always in their order.
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

// Each output's terms are split into parts of `part` neighbours, in whole packs, the last one
// shorter. With one part, results; with several, partial results [parts, outputs], which the second
// pass reduces as any other columns.
struct Split {
  int64_t terms, part, parts;
  bool partial;
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

// A group of lanes for each part of each output: for terms that lie beside each other.
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

// A thread for each part of V outputs: neighbours read neighbours. V beside each other are read at
// once, and each has its terms in the same order.
template <int V, typename Op, typename Terms, typename Store>
__device__ void ReduceColumns(const ReductionPass<Op, Terms, Store>& p) {
  using Columns = Pack<typename Terms::Element, V>;
  constexpr int64_t kBlock = 64;  // terms of one chain of additions
  constexpr int kAhead = 4;       // of which so many are read before they are added
  const int64_t columns = p.outputs / V;
  ForEachPiece<int64_t>(columns * p.split.parts, [&](int64_t piece) {
    const int64_t output = piece % columns * V, part = piece / columns;
    typename Terms::Term term[V];
    ValueOf<Op> total[V], value[V];
    for (int v = 0; v < V; ++v) {
      term[v] = p.terms.Of(output + v);
      total[v] = Op::Identity();
    }
    const int64_t end = Lesser((part + 1) * p.split.part, p.split.terms);
    for (int64_t begin = part * p.split.part; begin < end; begin += kBlock) {
      for (int v = 0; v < V; ++v) value[v] = Op::Identity();
      const int64_t stop = Lesser(begin + kBlock, end);
      for (int64_t i = begin; i < stop; i += kAhead) {
        Columns rows[kAhead];
        for (int a = 0; a < kAhead && i + a < stop; ++a) {
          const int64_t at = OffsetsOf(p.reduced, static_cast<uint64_t>(i + a)).at[0];
          rows[a] = *reinterpret_cast<const Columns*>(term[0].row + at);
        }
        for (int a = 0; a < kAhead && i + a < stop; ++a) {
          for (int v = 0; v < V; ++v) value[v] = Op()(value[v], term[v](rows[a].at[v], i + a));
        }
      }
      for (int v = 0; v < V; ++v) total[v] = Op()(total[v], value[v]);
    }
    for (int v = 0; v < V; ++v) p.Put(part, output + v, total[v]);
  });
}

// Whether each row of the outputs' terms is of whole packs, from where packs may be.
template <int V, typename Op, typename Terms, typename Store>
__device__ bool HasPackedColumns(const ReductionPass<Op, Terms, Store>& p) {
  const auto* const x = static_cast<const typename Terms::Element*>(p.terms.x);
  bool fits = p.outputs % V == 0 && FitsPacks<V>(x, p.terms.kept, 0);
  for (int d = 0; d < p.reduced.ndim(); ++d) fits = fits && p.reduced.stride(d, 0) % V == 0;
  return fits;
}

template <typename Op, typename Terms, typename Store>
__global__ void ReduceColumnsKernel(const __grid_constant__ ReductionPass<Op, Terms, Store> p) {
  constexpr int V = kPack<typename Terms::Element>;
  if (HasPackedColumns<V>(p)) return ReduceColumns<V>(p);
  ReduceColumns<1>(p);
}

// Neighbouring outputs lie beside each other, and their terms do not.
template <int N>
bool ReadsColumns(const StridedLoop<N>& kept, const StridedLoop<1>& reduced) {
  return kept.inner_size() > 1 && kept.inner_stride(0) == 1 && reduced.inner_stride(0) != 1;
}

// More parts where there are few outputs: of the shape alone, and as many values of `bytes` as
// scratch has room for.
inline Split SplitOf(int64_t outputs, int64_t terms, bool columns, int64_t bytes) {
  const int64_t least = columns ? 128 : 4096;  // terms of a part
  const int64_t wanted = (columns ? int64_t{1} << 18 : int64_t{1} << 10) / outputs;
  const int64_t room = kCudaScratchBytes / bytes / outputs;
  const int64_t parts = std::min({(terms + least - 1) / least, wanted, room});
  if (parts <= 1) return {terms, std::max<int64_t>(terms, 1), 1, false};
  const int64_t part = PartOf(terms, parts, kPack<std::byte>);
  return {terms, part, (terms + part - 1) / part, true};
}

template <typename Op, typename Terms, typename Store>
absl::Status LaunchPass(Device& device, const char* name,
                        const ReductionPass<Op, Terms, Store>& pass) {
  const int64_t pieces = pass.outputs * pass.split.parts;
  if (ReadsColumns(pass.terms.kept, pass.reduced) && pieces >= 512) {
    return Launch(device, name, BlocksFor(pieces), kThreads, ReduceColumnsKernel<Op, Terms, Store>,
                  pass);
  }
  return WithLanes(pass.split.part, [&](auto lanes) {
    return LaunchRows<lanes>(device, name, pieces, ReduceRowsKernel<lanes, Op, Terms, Store>, pass);
  });
}

}  // namespace internal

// On the GPU store(output, value) is called once for each output, with Op() of its terms, one for
// each element that `reduced` goes through. Op() is associative but for rounding, Op()(a, b) is
// Op()(b, a), and Op::Identity() is the value of no terms. The order depends on shapes and strides
// alone.
template <typename Op, typename Terms, typename Store>
absl::Status ReduceTerms(Device& device, const char* name, int64_t outputs,
                         const StridedLoop<1>& reduced, const Terms& terms, const Store& store) {
  using Value = internal::ValueOf<Op>;
  if (outputs == 0) return device.failure();
  const internal::Split split = internal::SplitOf(
      outputs, ElementsOf(reduced), internal::ReadsColumns(terms.kept, reduced), sizeof(Value));
  auto* const partial = static_cast<Value*>(CudaScratchOf(device));
  DT_RETURN_IF_ERROR((internal::LaunchPass<Op, Terms, Store>(
      device, name, {outputs, reduced, terms, store, split, partial})));
  if (!split.partial) return absl::OkStatus();
  const int64_t sizes[] = {outputs}, one[] = {1}, parts[] = {split.parts};
  return internal::LaunchPass<Op, ElementTerms<Value>, Store>(
      device, name,
      {outputs,
       StridedLoop<1>(parts, {sizes}),
       {partial, StridedLoop<1>(sizes, {one})},
       store,
       {split.parts, split.parts, 1, false},
       nullptr});
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_
