#include "dtensor/runtime/kernels/cuda/elementwise.h"

#include <cstdint>
#include <type_traits>

#include "dtensor/runtime/kernels/cuda/map-inl.h"
#include "dtensor/runtime/kernels/cuda/math-inl.h"
#include "dtensor/runtime/kernels/cuda/numeric-inl.h"

namespace dtensor::kernels::cuda {
namespace {

// Calls map(f) with the function for one element, in the type in which it is computed.
template <typename T, typename MapFn>
__device__ void WithBinaryOp(BinaryOp op, MapFn map) {
  using C = Compute<T>;
  switch (op) {
    case BinaryOp::kAdd:
      return map([](C a, C b) { return Add(a, b); });
    case BinaryOp::kSub:
      return map([](C a, C b) { return Subtract(a, b); });
    case BinaryOp::kMul:
      return map([](C a, C b) { return Multiply(a, b); });
    case BinaryOp::kDiv:
      if constexpr (kIsFloat<T>) return map([](C a, C b) { return a / b; });
      return;
    case BinaryOp::kMax:
      return map([](C a, C b) { return Larger(a, b); });
    case BinaryOp::kMin:
      return map([](C a, C b) { return Smaller(a, b); });
  }
}

template <typename T>
__global__ void BinaryKernel(BinaryArgs args, int64_t n) {
  WithBinaryOp<T>(args.op, [&](auto f) {
    Map<T>(Inputs<T, T>(), args.operands, n,
           [f](T a, T b) { return Round<T>(f(Widen(a), Widen(b))); });
  });
}

template <typename C, typename MapFn>
__device__ void WithUnaryOp(UnaryOp op, MapFn map) {
  switch (op) {
    case UnaryOp::kCopy:
    case UnaryOp::kNot:
      return;
    case UnaryOp::kNeg:
      return map([](C x) { return -x; });
    case UnaryOp::kExp:
      return map([](C x) { return exp(x); });
    case UnaryOp::kLog:
      return map([](C x) { return log(x); });
    case UnaryOp::kSqrt:
      return map([](C x) { return sqrt(x); });
    case UnaryOp::kRsqrt:
      return map([](C x) { return 1 / sqrt(x); });
    case UnaryOp::kRecip:
      return map([](C x) { return 1 / x; });
    case UnaryOp::kSquare:
      return map([](C x) { return x * x; });
    case UnaryOp::kAbs:
      return map([](C x) { return fabs(x); });
    case UnaryOp::kSilu:
      return map([](C x) { return x * Sigmoid(x); });
    case UnaryOp::kRelu:
      return map([](C x) { return x < 0 ? C{0} : x; });
    case UnaryOp::kSigmoid:
      return map([](C x) { return Sigmoid(x); });
    case UnaryOp::kTanh:
      return map([](C x) { return tanh(x); });
    case UnaryOp::kGelu:
      return map([](C x) { return x * NormalAt(x).cdf; });
    case UnaryOp::kGeluTanh:
      return map([](C x) { return x * Sigmoid(GeluTanhArgument(x)); });
  }
}

template <typename T>
__global__ void UnaryKernel(UnaryArgs args, int64_t n) {
  if constexpr (kIsFloat<T>) {
    WithUnaryOp<Compute<T>>(args.op, [&](auto f) {
      Map<T>(Inputs<T>(), args.operands, n, [f](T x) { return Round<T>(f(Widen(x))); });
    });
  } else {  // kNeg, and kNot of bools: x != true
    Map<T>(Inputs<T>(), args.operands, n,
           [](T x) { return WrapSub(T{std::is_same_v<T, bool>}, x); });
  }
}

template <typename From, typename To>
__global__ void ConvertKernel(UnaryArgs args, int64_t n) {
  Map<To>(Inputs<From>(), args.operands, n, [](From x) { return Convert<To>(x); });
}

__device__ bool IsWhole(double x) { return x == static_cast<double>(Truncate<int64_t>(x)); }

// Whole factors of integers stay in integers, so that no bit is lost above 2^53; others go through
// f64.
template <typename T>
__global__ void AffineKernel(AffineArgs args, int64_t n) {
  if constexpr (kIsFloat<T>) {
    using C = Compute<T>;
    const C scale = static_cast<C>(args.scale), shift = static_cast<C>(args.shift);
    Map<T>(Inputs<T>(), args.operands, n, [=](T x) { return Round<T>(Widen(x) * scale + shift); });
  } else if (IsWhole(args.scale) && IsWhole(args.shift)) {
    const T scale = static_cast<T>(Truncate<int64_t>(args.scale));
    const T shift = static_cast<T>(Truncate<int64_t>(args.shift));
    Map<T>(Inputs<T>(), args.operands, n, [=](T x) { return WrapAdd(WrapMul(scale, x), shift); });
  } else {
    const double scale = args.scale, shift = args.shift;
    Map<T>(Inputs<T>(), args.operands, n,
           [=](T x) { return Convert<T>(scale * static_cast<double>(x) + shift); });
  }
}

template <typename T>
__global__ void AddNKernel(AddNArgs args, int64_t n) {
  const int terms = args.terms;
  Map<T>(Inputs<T, T, T, T, T, T, T, T>(), args.operands, n,
         [terms](T a, T b, T c, T d, T e, T f, T g, T h) {
           const T all[] = {a, b, c, d, e, f, g, h};
           Compute<T> sum = Widen(a);
           for (int k = 1; k < 8; ++k) sum = k < terms ? Add(sum, Widen(all[k])) : sum;
           return Round<T>(sum);
         });
}

template <typename T>
__global__ void FillKernel(FillArgs args, int64_t n) {
  const T value = Convert<T>(args.value);
  ForEachElement(args.loop, 0, n, [&](int64_t, const Offsets<1>& offsets) {
    static_cast<T*>(args.out)[offsets.at[0]] = value;
  });
}

// Calls map(f) with f(x) = x^exponent.
template <typename C, typename MapFn>
__device__ void WithPower(double exponent, MapFn map) {
  if (exponent == 0) return map([](C) { return C{1}; });
  if (exponent == 1) return map([](C x) { return x; });
  if (exponent == 2) return map([](C x) { return x * x; });
  if (exponent == -1) return map([](C x) { return 1 / x; });
  if (exponent == 0.5) return map([](C x) { return sqrt(x); });
  if (exponent == -0.5) return map([](C x) { return 1 / sqrt(x); });
  map([exponent](C x) { return static_cast<C>(pow(static_cast<double>(x), exponent)); });
}

template <typename T>
__global__ void PowKernel(PowArgs args, int64_t n) {
  WithPower<Compute<T>>(args.exponent, [&](auto f) {
    Map<T>(Inputs<T>(), args.operands, n, [f](T x) { return Round<T>(f(Widen(x))); });
  });
}

template <typename T>
__global__ void PowGradKernel(PowGradArgs args, int64_t n) {
  // Not 0 * x^-1, which is NaN at 0.
  const double lower = args.exponent == 0 ? 0 : args.exponent - 1;
  const auto exponent = static_cast<Compute<T>>(args.exponent);
  WithPower<Compute<T>>(lower, [&](auto f) {
    Map<T>(Inputs<T, T>(), args.operands, n,
           [f, exponent](T x, T dy) { return Round<T>(Widen(dy) * (exponent * f(Widen(x)))); });
  });
}

// Calls map(f) with f(s, dy) = dy * op'(x), where s is x or op(x).
template <typename C, typename MapFn>
__device__ void WithUnaryGrad(UnaryOp op, MapFn map) {
  switch (op) {
    case UnaryOp::kCopy:
    case UnaryOp::kNot:
    case UnaryOp::kNeg:
      return;
    case UnaryOp::kExp:
      return map([](C s, C dy) { return dy * s; });
    case UnaryOp::kLog:
      return map([](C s, C dy) { return dy / s; });
    case UnaryOp::kSqrt:
      return map([](C s, C dy) { return dy / (s + s); });
    case UnaryOp::kRsqrt:
      return map([](C s, C dy) { return (dy * C(-0.5)) * (s * (s * s)); });
    case UnaryOp::kRecip:
      return map([](C s, C dy) { return -dy * (s * s); });
    case UnaryOp::kSquare:
      return map([](C s, C dy) { return dy * (s + s); });
    case UnaryOp::kAbs:  // the sign of NaN counts as 0
      return map([](C s, C dy) { return dy * (C(s > 0) - C(s < 0)); });
    case UnaryOp::kSilu:
      return map([](C s, C dy) { return dy * SiluSlope(s, Sigmoid(s)); });
    case UnaryOp::kRelu:
      return map([](C s, C dy) { return s <= 0 ? C{0} : dy; });
    case UnaryOp::kSigmoid:
      return map([](C s, C dy) { return dy * (s * (1 - s)); });
    case UnaryOp::kTanh:
      return map([](C s, C dy) { return dy * fma(-s, s, C{1}); });
    case UnaryOp::kGelu:
      return map([](C s, C dy) { return dy * GeluSlope(s); });
    case UnaryOp::kGeluTanh:
      return map([](C s, C dy) { return dy * GeluTanhSlope(s); });
  }
}

template <typename T>
__global__ void UnaryGradKernel(UnaryGradArgs args, int64_t n) {
  WithUnaryGrad<Compute<T>>(args.op, [&](auto f) {
    Map<T>(Inputs<T, T>(), args.operands, n,
           [f](T s, T dy) { return Round<T>(f(Widen(s), Widen(dy))); });
  });
}

// The gradient of max(mine, other) by `mine`: dy if `mine` is larger, half of dy if both are equal,
// otherwise 0. With NaN, dy.
template <typename C>
__device__ C ShareOfLarger(C mine, C other, C dy) {
  if (mine < other) return 0;
  return mine == other ? dy * C(0.5) : dy;
}

template <typename T>
__global__ void BinaryGradKernel(BinaryGradArgs args, int64_t n) {
  using C = Compute<T>;
  const auto map = [&](auto f) {
    Map<T>(Inputs<T, T, T>(), args.operands, n,
           [f](T a, T b, T dy) { return Round<T>(f(Widen(a), Widen(b), Widen(dy))); });
  };
  if (args.op == BinaryOp::kDiv) {
    if (args.operand == 0) return map([](C, C b, C dy) { return dy / b; });
    return map([](C a, C b, C dy) { return -dy * (a / b / b); });
  }
  // The minimum is a if b is larger.
  if ((args.op == BinaryOp::kMax) == (args.operand == 0)) {
    return map([](C a, C b, C dy) { return ShareOfLarger(a, b, dy); });
  }
  map([](C a, C b, C dy) { return ShareOfLarger(b, a, dy); });
}

template <typename T>
__global__ void SiluMulKernel(SiluMulArgs args, int64_t n) {
  Map<T>(Inputs<T, T>(), args.operands, n, [](T gate, T up) {
    const auto g = Widen(gate);
    return Round<T>(g * Sigmoid(g) * Widen(up));
  });
}

template <typename T>
__global__ void SiluMulGradKernel(SiluMulGradArgs args, int64_t n) {
  Map<T>(Inputs<T, T, T>(), args.operands, n, [](T gate, T up, T dy) {
    const auto g = Widen(gate), u = Widen(up), d = Widen(dy), s = Sigmoid(g);
    return Two<T>{Round<T>(d * u * SiluSlope(g, s)), Round<T>(d * (g * s))};
  });
}

// NaN stays NaN.
template <typename C>
__device__ C AtMost(C x, C limit) {
  return x > limit ? limit : x;
}

template <typename T>
__global__ void ClampedSwiGluKernel(ClampedSwiGluArgs args, int64_t n) {
  using C = Compute<T>;
  const C slope = static_cast<C>(args.slope), limit = static_cast<C>(args.limit);
  Map<T>(Inputs<T, T>(), args.operands, n, [=](T gate, T up) {
    const C g = AtMost(Widen(gate), limit), u = -AtMost(-AtMost(Widen(up), limit), limit);
    return Round<T>(g * Sigmoid(slope * g) * (u + 1));
  });
}

template <typename T>
__global__ void ClampedSwiGluGradKernel(ClampedSwiGluGradArgs args, int64_t n) {
  using C = Compute<T>;
  const C slope = static_cast<C>(args.slope), limit = static_cast<C>(args.limit);
  Map<T>(Inputs<T, T, T>(), args.operands, n, [=](T gate, T up, T dy) {
    const C all_g = Widen(gate), all_u = Widen(up), d = Widen(dy);
    const C g = AtMost(all_g, limit), u = -AtMost(-AtMost(all_u, limit), limit);
    const C x = slope * g, s = Sigmoid(x);  // (g s(slope g))' = silu'(slope g)
    return Two<T>{Round<T>(all_g <= limit ? d * (u + 1) * SiluSlope(x, s) : C{0}),
                  Round<T>(fabs(all_u) <= limit ? d * (g * s) : C{0})};
  });
}

}  // namespace

absl::Status Binary(Device& device, const char* kernel, const BinaryArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, BinaryKernel<decltype(t)>, args);
  });
}

absl::Status AddN(Device& device, const char* kernel, const AddNArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, AddNKernel<decltype(t)>, args);
  });
}

absl::Status Unary(Device& device, const char* kernel, const UnaryArgs& args) {
  return VisitDType(args.from, [&](auto from) {
    using From = decltype(from);
    if (args.op != UnaryOp::kCopy) {
      return LaunchMap(device, kernel, args.operands.loop, UnaryKernel<From>, args);
    }
    return VisitDType(args.to, [&](auto to) {
      return LaunchMap(device, kernel, args.operands.loop, ConvertKernel<From, decltype(to)>, args);
    });
  });
}

absl::Status Affine(Device& device, const char* kernel, const AffineArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, AffineKernel<decltype(t)>, args);
  });
}

absl::Status Fill(Device& device, const char* kernel, const FillArgs& args) {
  return VisitDType(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.loop, FillKernel<decltype(t)>, args);
  });
}

absl::Status Pow(Device& device, const char* kernel, const PowArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, PowKernel<decltype(t)>, args);
  });
}

absl::Status PowGrad(Device& device, const char* kernel, const PowGradArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, PowGradKernel<decltype(t)>, args);
  });
}

absl::Status UnaryGrad(Device& device, const char* kernel, const UnaryGradArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, UnaryGradKernel<decltype(t)>, args);
  });
}

absl::Status BinaryGrad(Device& device, const char* kernel, const BinaryGradArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, BinaryGradKernel<decltype(t)>, args);
  });
}

absl::Status SiluMul(Device& device, const char* kernel, const SiluMulArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, SiluMulKernel<decltype(t)>, args);
  });
}

absl::Status SiluMulGrad(Device& device, const char* kernel, const SiluMulGradArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, SiluMulGradKernel<decltype(t)>, args);
  });
}

absl::Status ClampedSwiGlu(Device& device, const char* kernel, const ClampedSwiGluArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, ClampedSwiGluKernel<decltype(t)>, args);
  });
}

absl::Status ClampedSwiGluGrad(Device& device, const char* kernel,
                               const ClampedSwiGluGradArgs& args) {
  return VisitFloat(args.dtype, [&](auto t) {
    return LaunchMap(device, kernel, args.operands.loop, ClampedSwiGluGradKernel<decltype(t)>,
                     args);
  });
}

}  // namespace dtensor::kernels::cuda
