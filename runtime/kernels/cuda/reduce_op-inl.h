// The operations by which reductions combine terms.
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_OP_INL_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_OP_INL_H_

#include <limits>
#include <type_traits>

#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {

// For terms in the type in which they are computed; for kMax and kMin, a NaN is the result.
template <ReduceOp kOp, typename C>
struct Combine {
  __device__ C operator()(C a, C b) const {
    if constexpr (kOp == ReduceOp::kMax) return Larger(a, b);
    if constexpr (kOp == ReduceOp::kMin) return Smaller(a, b);
    if constexpr (kOp == ReduceOp::kProduct) return Multiply(a, b);
    return Add(a, b);
  }
  // The result for no terms.
  __device__ static C Identity() {
    using Limits = std::numeric_limits<C>;
    if constexpr (kOp == ReduceOp::kMax) {
      return std::is_floating_point_v<C> ? -Limits::infinity() : Limits::lowest();
    }
    if constexpr (kOp == ReduceOp::kMin) {
      return std::is_floating_point_v<C> ? Limits::infinity() : Limits::max();
    }
    return kOp == ReduceOp::kProduct ? C(1) : C(0);
  }
};

// Calls fn(op) with the Combine of `op`.
template <typename C, typename Fn>
decltype(auto) WithReduceOp(ReduceOp op, Fn&& fn) {
  switch (op) {
    case ReduceOp::kMax:
      return fn(Combine<ReduceOp::kMax, C>());
    case ReduceOp::kMin:
      return fn(Combine<ReduceOp::kMin, C>());
    case ReduceOp::kProduct:
      return fn(Combine<ReduceOp::kProduct, C>());
    default:
      return fn(Combine<ReduceOp::kSum, C>());
  }
}

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_REDUCE_OP_INL_H_
