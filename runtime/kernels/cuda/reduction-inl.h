// Reductions: for each output, one value out of its terms. A kernel brings what the terms are, how
// two values become one, and where the result goes, as plain values.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_REDUCTION_INL_H_

#include <algorithm>
#include <cstdint>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"

namespace dtensor::kernels::cuda {

// The elements of x, in the type that they are computed in. As all types of terms: `kept` goes
// through the outputs, its first operand is what is reduced, and Of(output) gives term(at, i), for
// term i, which lies `at` elements from the output's first.
template <typename T>
struct ElementTerms {
  const void* x;
  StridedLoop<1> kept;

  __device__ auto Of(int64_t output) const {
    const T* row = static_cast<const T*>(x) + OffsetsOf(kept, static_cast<uint64_t>(output)).at[0];
    return [row](int64_t at, int64_t) { return static_cast<Compute<T>>(Widen(row[at])); };
  }
};

namespace internal {

template <typename Op>
using ValueOf = decltype(Op::Identity());

// Each output's terms are split into parts of `part` neighbours, the last one shorter. With one
// part, results; with several, partial results [parts, outputs], which the second pass reduces as
// any other columns.
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
  ForEachRow<kLanes>(p.outputs * p.split.parts, [&](int64_t row, int lane) {
    const int64_t output = row % p.outputs, part = row / p.outputs;
    const auto term = p.terms.Of(output);
    const int64_t begin = part * p.split.part;
    const int64_t end = Lesser(begin + p.split.part, p.split.terms);
    ValueOf<Op> value = Op::Identity();
    WithIndex(p.split.terms, [&](auto n) {
      using Index = decltype(n);
      for (int64_t i = begin + lane; i < end; i += kLanes) {
        value = Op()(value, term(OffsetsOf(p.reduced, static_cast<Index>(i)).at[0], i));
      }
    });
    value = FoldLanes<kLanes>(value, Op());
    if (lane == 0) p.Put(part, output, value);
  });
}

// A thread for each part of each output: neighbours read neighbours.
template <typename Op, typename Terms, typename Store>
__global__ void ReduceColumnsKernel(const __grid_constant__ ReductionPass<Op, Terms, Store> p) {
  constexpr int64_t kBlock = 64;  // terms of one chain of additions
  ForEachPiece<int64_t>(p.outputs * p.split.parts, [&](int64_t piece) {
    const int64_t output = piece % p.outputs, part = piece / p.outputs;
    const auto term = p.terms.Of(output);
    const int64_t end = Lesser((part + 1) * p.split.part, p.split.terms);
    ValueOf<Op> total = Op::Identity();
    for (int64_t begin = part * p.split.part; begin < end; begin += kBlock) {
      ValueOf<Op> value = Op::Identity();
      for (int64_t i = begin; i < Lesser(begin + kBlock, end); ++i) {
        value = Op()(value, term(OffsetsOf(p.reduced, static_cast<uint64_t>(i)).at[0], i));
      }
      total = Op()(total, value);
    }
    p.Put(part, output, total);
  });
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
  const int64_t wanted = (columns ? int64_t{1} << 17 : int64_t{1} << 10) / outputs;
  const int64_t room = kCudaScratchBytes / bytes / outputs;
  const int64_t parts = std::min({(terms + least - 1) / least, wanted, room});
  if (parts <= 1) return {terms, std::max<int64_t>(terms, 1), 1, false};
  const int64_t part = (terms + parts - 1) / parts;
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
