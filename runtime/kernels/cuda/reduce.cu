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
