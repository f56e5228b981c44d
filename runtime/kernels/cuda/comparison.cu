#include "dtensor/runtime/kernels/cuda/comparison.h"

#include <cstdint>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Calls map(f) with the comparison of two elements.
template <typename C, typename MapFn>
__device__ void WithCompareOp(CompareOp op, MapFn map) {
  switch (op) {
    case CompareOp::kEqual:
      return map([](C a, C b) { return a == b; });
    case CompareOp::kNotEqual:
      return map([](C a, C b) { return a != b; });
    case CompareOp::kLess:
      return map([](C a, C b) { return a < b; });
    default:
      return map([](C a, C b) { return a <= b; });
  }
}

template <typename T>
__global__ void CompareKernel(CompareArgs args, int64_t n) {
  WithCompareOp<Compute<T>>(args.op, [&](auto f) {
    Map<bool>(Inputs<T, T>(), args.operands, n, [f](T a, T b) { return f(Widen(a), Widen(b)); });
  });
}

// Moves elements as bits, whatever their type means.
template <typename Bits>
__global__ void WhereKernel(WhereArgs args, int64_t n) {
  Map<Bits>(Inputs<bool, Bits, Bits>(), args.operands, n,
            [](bool condition, Bits a, Bits b) { return condition ? a : b; });
}

}  // namespace

absl::Status Compare(Device& device, const char* kernel, const CompareArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, CompareKernel<decltype(t)>, args);
  });
}

absl::Status Where(Device& device, const char* kernel, const WhereArgs& args) {
  return WithBits(args.operands.out_size[0], [&](auto bits) {
    return LaunchMap(device, kernel, args.operands.loop, WhereKernel<decltype(bits)>, args);
  });
}

}  // namespace dtensor::kernels::cuda
