#include "dtensor/runtime/kernels/cuda/reduce.h"

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"
#include "dtensor/runtime/kernels/cuda/reduce_op-inl.h"
#include "dtensor/runtime/kernels/cuda/reduction-inl.h"
#include "dtensor/runtime/kernels/cuda/term_sums-inl.h"

namespace dtensor::kernels::cuda {
namespace {

template <typename Acc, typename Out>
struct StoreResult {
  void* out;
  double divisor;

  __device__ void operator()(int64_t output, Acc value) const {
    if constexpr (std::is_floating_point_v<Acc>) {
      if (divisor != 1) value /= static_cast<Acc>(divisor);
    }
    static_cast<Out*>(out)[output] = Convert<Out>(value);
  }
};

template <typename T, typename Out, typename Op>
absl::Status ReduceAs(Device& device, const char* kernel, const ReduceArgs& args) {
  return ReduceTerms<Op>(device, kernel, args.outputs, args.reduced,
                         ElementTerms<T>{args.x, args.kept},
                         StoreResult<Compute<T>, Out>{args.out, args.divisor});
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
struct SquareTerms {
  static constexpr int kTerms = kPack<T>;
  explicit SquareTerms(const StridedOperands<1, 0>& operands)
      : x(reinterpret_cast<const T*>(operands.in[0])),
        loop(operands.loop),
        fits(FitsPacks<kTerms>(x, loop, 0)) {}
  __device__ Sums<1> operator()(int64_t i, int64_t end) const {
    Sums<1> sum = {};
    ForEachOfPack<kTerms, uint64_t>(x, loop, fits, i, end, [&](T element, int64_t) {
      const auto value = static_cast<double>(Widen(element));
      sum.at[0] += value * value;
    });
    return sum;
  }

  const T* x;
  StridedLoop<1> loop;
  bool fits;
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
    return SumTerms<1>(device, kernel, ElementsOf(args.x.loop), SquareTerms<T>(args.x),
                       StoreSum<T>{args.out});
  });
}

}  // namespace dtensor::kernels::cuda
