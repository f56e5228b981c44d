// Normal random numbers by Box and Muller: two from two words, with the same bits from every
// compiler, processor and GPU. To this end everything consists of sums, products, quotients and
// square roots in f64, which IEEE 754 rounds identically everywhere, in the order written here. The
// functions of <cmath> differ between libraries.
//
// Logarithm, sine and cosine use the argument reductions of fdlibm (Sun Microsystems, 1993); the
// polynomials are minimax ones of our own (Remez' exchange). Each has an error of less than 1 ulp
// (normal_pair_test).
//
// No arrays, and only constexpr functions: nvcc would turn anything else into a trap
// (tools/cuda/compile_kernels).
#ifndef DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORMAL_PAIR_H_
#define DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORMAL_PAIR_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace dtensor::kernels {

struct NormalPair {
  double first, second;
};

namespace box_muller {

// a * b, rounded separately: a compiler may fuse a product and a sum that it sees, which omits one
// rounding, wherever the processor has an instruction for both.
constexpr double Product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  double product = a * b;
  if (!std::is_constant_evaluated()) {
#if defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#endif
  }
  return product;
#endif
}

// a * b + c in two roundings.
constexpr double ProductPlus(double a, double b, double c) { return Product(a, b) + c; }

// 2^52 + n, for n < 2^52: built from its bits, so that no conversion instruction is needed.
constexpr double Above52(uint64_t n) { return std::bit_cast<double>(0x4330000000000000 + n); }

// The natural logarithm of u = (word + 0.5) / 2^32, which is in (0, 1).
//
// u = 2^k m with m in [sqrt(1/2), sqrt(2)). With f = m - 1, s = f / (2 + f) and w = s^2, log m = 2
// s + s w R(w). The error of R makes that wrong by less than 2^-59 of it.
constexpr double LogOfUniform(uint32_t word) {
  constexpr uint64_t kOne = 0x3FF0000000000000, kSqrtHalf = 0x3FE6A09E00000000;
  constexpr uint64_t kFraction = 0x000FFFFFFFFFFFFF;
  const double x = Above52(2 * uint64_t{word} + 1) - 0x1p52;  // u 2^33, exact
  const uint64_t bits = std::bit_cast<uint64_t>(x) + (kOne - kSqrtHalf);
  const double k = Above52(bits >> 52) - (0x1p52 + 1023 + 33);
  const double f = std::bit_cast<double>((bits & kFraction) + kSqrtHalf) - 1;  // exact
  const double s = f / (2 + f), w = Product(s, s);
  double r = ProductPlus(w, 0x1.2f056abfa0fefp-3, 0x1.39a1b9feb3f90p-3);
  r = ProductPlus(w, r, 0x1.74663eefd29d3p-3);
  r = ProductPlus(w, r, 0x1.c71c52093649dp-3);
  r = ProductPlus(w, r, 0x1.24924941f15b9p-2);
  r = ProductPlus(w, r, 0x1.999999997fdb3p-2);
  r = ProductPlus(w, r, 0x1.5555555555592p-1);
  // ln 2 in two parts; k times the first is exact. f is added last, since it is the largest.
  constexpr double kLn2 = 0x1.62e42feep-1, kLn2Rest = 0x1.a39ef35793c76p-33;
  const double half_square = Product(Product(0.5, f), f);
  const double rest = Product(s, half_square + Product(w, r)) + Product(k, kLn2Rest);
  return Product(k, kLn2) - ((half_square - rest) - f);
}

struct UnitPoint {
  double cosine, sine;
};

// For an angle x + y in [-pi / 4, pi / 4], where y is what x lost in rounding. With z = x^2,
//
//   sin x = x + x z S(z)              with an error by S of less than 2^-57 of it
//   cos x = 1 - z / 2 + z^2 C(z)      with an error by C of less than 2^-64
constexpr UnitPoint PointNearZero(double x, double y) {
  const double z = Product(x, x), xz = Product(x, z);
  double s = ProductPlus(z, 0x1.5d932f9260469p-33, -0x1.ae5e66d5b43e8p-26);
  s = ProductPlus(z, s, 0x1.71de3578751ccp-19);
  s = ProductPlus(z, s, -0x1.a01a019c126b6p-13);
  s = ProductPlus(z, s, 0x1.111111110f881p-7);
  const double bent = Product(z, Product(0.5, y) - Product(xz, s)) - y;
  const double sine = x - (bent + Product(xz, 0x1.5555555555549p-3));
  double c = ProductPlus(z, -0x1.8faed003c7fe9p-37, 0x1.1ee9ec4956c67p-29);
  c = ProductPlus(z, c, -0x1.27e4f80a78ddfp-22);
  c = ProductPlus(z, c, 0x1.a01a019cb272bp-16);
  c = ProductPlus(z, c, -0x1.6c16c16c15185p-10);
  c = ProductPlus(z, c, 0x1.555555555554cp-5);
  const double half = Product(0.5, z), most = 1 - half;
  const double rest = ((1 - most) - half) + (Product(Product(z, z), c) - Product(x, y));
  return {most + rest, sine};
}

// At the angle 2 pi word / 2^32: `quarter` quarters of a turn, and t / 2^32 of a turn, |t| <= 2^29.
constexpr UnitPoint PointOfUniform(uint32_t word) {
  const uint64_t quarter = (uint64_t{word} + (1u << 29)) >> 30;  // 0 to 4
  const double t = Above52(word) - Above52(quarter << 30);       // exact
  // 2 pi / 2^32 in two parts; the first has 24 bits, and t times it is exact.
  constexpr double kStep = 0x1.921fb4p-30, kStepRest = 0x1.4442d18469899p-54;
  const double upper = Product(t, kStep), lower = Product(t, kStepRest);
  const double x = upper + lower, y = lower - (x - upper);
  const UnitPoint near = PointNearZero(x, y);
  const bool swaps = quarter % 2 == 1;
  const double cosine = swaps ? near.sine : near.cosine, sine = swaps ? near.cosine : near.sine;
  return {(quarter + 1) & 2 ? -cosine : cosine, quarter & 2 ? -sine : sine};
}

// The square root. For some compilers std::sqrt is no constant expression, and they refuse a
// function that can never be one; hence NaN in a constant expression. (A GPU's code must not ask
// whether it is in one: nvcc 13.0 takes the initializer of a const variable for one.)
constexpr double Root(double x) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(x);
#else
  if (std::is_constant_evaluated()) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(x);
#endif
}

}  // namespace box_muller

// Two independent normal numbers from two independent words. NaN in a constant expression.
constexpr NormalPair NormalsOf(uint32_t first, uint32_t second) {
  const double square = box_muller::Product(-2, box_muller::LogOfUniform(first));
  const double radius = box_muller::Root(square);
  const box_muller::UnitPoint point = box_muller::PointOfUniform(second);
  return {box_muller::Product(radius, point.cosine), box_muller::Product(radius, point.sine)};
}

// Scales a standard normal number to this mean and standard deviation.
constexpr double ShiftedNormal(double normal, double mean, double stddev) {
  return box_muller::ProductPlus(stddev, normal, mean);
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORMAL_PAIR_H_
