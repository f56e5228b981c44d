#include "dtensor/runtime/kernels/cuda/reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/reduce_op-inl.h"
#include "dtensor/runtime/kernels/cuda/row_groups-inl.h"
#include "dtensor/runtime/kernels/cuda/term_sums-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Each output's terms are split into parts of `part` neighbours, the last one shorter. With one
// part, results; with several, partial results [parts, outputs], of the type that is computed in,
// which the second pass reduces as any other columns.
struct Split {
  int64_t terms, part, parts;
  bool partial;
};

struct ReducePass {
  ReduceArgs args;
  Split split;
  void* to;
};

template <typename Acc>
struct Result {
  template <typename Out>
  static __device__ void Store(const ReducePass& p, int64_t part, int64_t output, Acc value) {
    if (p.split.partial) {
      static_cast<Acc*>(p.to)[part * p.args.outputs + output] = value;
      return;
    }
    if constexpr (std::is_floating_point_v<Acc>) {
      if (p.args.divisor != 1) value /= static_cast<Acc>(p.args.divisor);
    }
    static_cast<Out*>(p.to)[output] = Convert<Out>(value);
  }
};

// A group of lanes for each part of each output: for terms that lie beside each other.
template <int kLanes, typename T, typename Out, typename Op>
__global__ void ReduceRowsKernel(ReducePass p) {
  using Acc = Compute<T>;
  ForEachRow<kLanes>(p.args.outputs * p.split.parts, [&](int64_t row, int lane) {
    const int64_t output = row % p.args.outputs, part = row / p.args.outputs;
    const T* x = static_cast<const T*>(p.args.x) +
                 OffsetsOf(p.args.kept, static_cast<uint64_t>(output)).at[0];
    const int64_t begin = part * p.split.part;
    const int64_t end = Lesser(begin + p.split.part, p.split.terms);
    Acc sum = Op::Identity();
    WithIndex(p.split.terms, [&](auto n) {
      using Index = decltype(n);
      for (int64_t i = begin + lane; i < end; i += kLanes) {
        const int64_t at = OffsetsOf(p.args.reduced, static_cast<Index>(i)).at[0];
        sum = Op()(sum, static_cast<Acc>(Widen(x[at])));
      }
    });
    sum = FoldLanes<kLanes>(sum, Op());
    if (lane == 0) Result<Acc>::template Store<Out>(p, part, output, sum);
  });
}

// A thread for each part of each output: neighbours read neighbours.
template <typename T, typename Out, typename Op>
__global__ void ReduceColumnsKernel(ReducePass p) {
  using Acc = Compute<T>;
  constexpr int64_t kBlock = 64;  // terms of one chain of additions
  ForEachPiece<int64_t>(p.args.outputs * p.split.parts, [&](int64_t piece) {
    const int64_t output = piece % p.args.outputs, part = piece / p.args.outputs;
    const T* x = static_cast<const T*>(p.args.x) +
                 OffsetsOf(p.args.kept, static_cast<uint64_t>(output)).at[0];
    const int64_t end = Lesser((part + 1) * p.split.part, p.split.terms);
    Acc total = Op::Identity();
    for (int64_t begin = part * p.split.part; begin < end; begin += kBlock) {
      Acc sum = Op::Identity();
      for (int64_t i = begin; i < Lesser(begin + kBlock, end); ++i) {
        const int64_t at = OffsetsOf(p.args.reduced, static_cast<uint64_t>(i)).at[0];
        sum = Op()(sum, static_cast<Acc>(Widen(x[at])));
      }
      total = Op()(total, sum);
    }
    Result<Acc>::template Store<Out>(p, part, output, total);
  });
}

// Neighbouring outputs lie beside each other, and their terms do not.
bool ReadsColumns(const ReduceArgs& a) {
  return a.kept.inner_size() > 1 && a.kept.inner_stride(0) == 1 && a.reduced.inner_stride(0) != 1;
}

// More parts where there are few outputs: of the shape alone, and as many as scratch has room for.
Split SplitOf(const ReduceArgs& a, int64_t terms, int64_t bytes) {
  const int64_t least = ReadsColumns(a) ? 128 : 4096;  // terms of a part
  const int64_t wanted = (ReadsColumns(a) ? int64_t{1} << 17 : int64_t{1} << 10) / a.outputs;
  const int64_t room = kCudaScratchBytes / bytes / a.outputs;
  const int64_t parts = std::min({(terms + least - 1) / least, wanted, room});
  if (parts <= 1) return {terms, std::max<int64_t>(terms, 1), 1, false};
  const int64_t part = (terms + parts - 1) / parts;
  return {terms, part, (terms + part - 1) / part, true};
}

template <typename T, typename Out, typename Op>
absl::Status LaunchPass(Device& device, const char* kernel, const ReducePass& pass) {
  const int64_t pieces = pass.args.outputs * pass.split.parts;
  if (ReadsColumns(pass.args) && pieces >= 512) {
    return Launch(device, kernel, BlocksFor(pieces), kThreads, ReduceColumnsKernel<T, Out, Op>,
                  pass);
  }
  return WithLanes(pass.split.part, [&](auto lanes) {
    return LaunchRows<lanes>(device, kernel, pieces, ReduceRowsKernel<lanes, T, Out, Op>, pass);
  });
}

template <typename T, typename Out, typename Op>
absl::Status ReduceAs(Device& device, const char* kernel, const ReduceArgs& args) {
  using Acc = Compute<T>;
  if (args.outputs == 0) return device.failure();
  const Split split = SplitOf(args, ElementsOf(args.reduced), sizeof(Acc));
  if (!split.partial) return LaunchPass<T, Out, Op>(device, kernel, {args, split, args.out});
  void* const partial = CudaScratchOf(device);
  DT_RETURN_IF_ERROR((LaunchPass<T, Out, Op>(device, kernel, {args, split, partial})));
  const int64_t outputs[] = {args.outputs}, one[] = {1};
  const int64_t parts[] = {split.parts}, apart[] = {args.outputs};
  ReduceArgs rest = args;
  rest.x = partial;
  rest.kept = StridedLoop<1>(outputs, {one});
  rest.reduced = StridedLoop<1>(parts, {apart});
  const Split all = {split.parts, split.parts, 1, false};
  return LaunchPass<Acc, Out, Op>(device, kernel, {rest, all, args.out});
}

}  // namespace

absl::Status Reduce(Device& device, const char* kernel, const ReduceArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    using T = decltype(t);
    return WithReduceOp<Compute<T>>(args.op, [&](auto op) {
      using Op = decltype(op);
      if (args.out_dtype == args.dtype) return ReduceAs<T, T, Op>(device, kernel, args);
      return ReduceAs<T, Compute<T>, Op>(device, kernel, args);
    });
  });
}

namespace {

template <typename T>
struct SquareTerm {
  StridedOperands<1, 0> x;
  __device__ Sums<1> operator()(int64_t i) const {
    const int64_t at = OffsetsOf(x.loop, static_cast<uint64_t>(i)).at[0];
    const auto value = static_cast<double>(Widen(reinterpret_cast<const T*>(x.in[0])[at]));
    return {{value * value}};
  }
};

template <typename T>
struct StoreSum {
  void* out;
  __device__ void operator()(const Sums<1>& sums) const {
    *static_cast<Compute<T>*>(out) = static_cast<Compute<T>>(sums.at[0]);
  }
};

}  // namespace

absl::Status SumOfSquares(Device& device, const char* kernel, const SumOfSquaresArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    using T = decltype(t);
    return SumTerms<1>(device, kernel, ElementsOf(args.x.loop), SquareTerm<T>{args.x},
                       StoreSum<T>{args.out});
  });
}

}  // namespace dtensor::kernels::cuda
