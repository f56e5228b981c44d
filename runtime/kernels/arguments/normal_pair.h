// Normal random numbers of Box and Muller: two of two words, with the same bits from every
// compiler, processor and GPU. For that all is made of sums, products, quotients and square roots
// in f64, which IEEE 754 rounds alike everywhere, in an order that is written here; the functions
// of <cmath> differ from one library to the next.
//
// Logarithm, sine and cosine are those of fdlibm (Sun Microsystems, 1993) by their reductions; the
// polynomials are minimax ones of our own (Remez' exchange). Each is less than 1 ulp off
// (normal_pair_test).
//
// No arrays, and nothing that is not constexpr: nvcc would make a trap of it
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

// a * b, rounded by itself: a compiler may fuse a product that it sees and a sum, which takes one
// rounding away, wherever the processor has an instruction for both.
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

// 2^52 + n, for n < 2^52: all its bits are known, and no instruction has to convert.
constexpr double Above52(uint64_t n) { return std::bit_cast<double>(0x4330000000000000 + n); }

// The natural logarithm of u = (word + 0.5) / 2^32, which is in (0, 1).
//
// u = 2^k m with m in [sqrt(1/2), sqrt(2)). With f = m - 1, s = f / (2 + f) and w = s^2,
// log m = 2 s + s w R(w), which R lets be off by less than 2^-59 of it.
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
  // ln 2 in two parts, of which k times the first is exact. f goes in last, as the largest.
  constexpr double kLn2 = 0x1.62e42feep-1, kLn2Rest = 0x1.a39ef35793c76p-33;
  const double half_square = Product(Product(0.5, f), f);
  const double rest = Product(s, half_square + Product(w, r)) + Product(k, kLn2Rest);
  return Product(k, kLn2) - ((half_square - rest) - f);
}

struct UnitPoint {
  double cosine, sine;
};

// Of an angle x + y in [-pi / 4, pi / 4], y being what x lost in rounding. With z = x^2,
//
//   sin x = x + x z S(z)              which S lets be off by less than 2^-57 of it
//   cos x = 1 - z / 2 + z^2 C(z)      and C by less than 2^-64
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

// At the angle 2 pi word / 2^32: so many quarters of a turn, and t / 2^32 of one, |t| <= 2^29.
constexpr UnitPoint PointOfUniform(uint32_t word) {
  const uint64_t quarter = (uint64_t{word} + (1u << 29)) >> 30;  // 0 to 4
  const double t = Above52(word) - Above52(quarter << 30);       // exact
  // 2 pi / 2^32 in two parts, of which t times the first, which has 24 bits, is exact.
  constexpr double kStep = 0x1.921fb4p-30, kStepRest = 0x1.4442d18469899p-54;
  const double upper = Product(t, kStep), lower = Product(t, kStepRest);
  const double x = upper + lower, y = lower - (x - upper);
  const UnitPoint near = PointNearZero(x, y);
  const bool swaps = quarter % 2 == 1;
  const double cosine = swaps ? near.sine : near.cosine, sine = swaps ? near.cosine : near.sine;
  return {(quarter + 1) & 2 ? -cosine : cosine, quarter & 2 ? -sine : sine};
}

// The square root. To some compilers std::sqrt is no constant expression, and they refuse what
// never is one: NaN in a constant expression. (A GPU's code must not ask whether it is in one: nvcc
// 13.0 takes the initializer of a const variable for that.)
constexpr double Root(double x) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(x);
#else
  if (std::is_constant_evaluated()) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(x);
#endif
}

}  // namespace box_muller

// Two independent normal numbers of two independent words. Not in a constant expression: NaN there.
constexpr NormalPair NormalsOf(uint32_t first, uint32_t second) {
  const double square = box_muller::Product(-2, box_muller::LogOfUniform(first));
  const double radius = box_muller::Root(square);
  const box_muller::UnitPoint point = box_muller::PointOfUniform(second);
  return {box_muller::Product(radius, point.cosine), box_muller::Product(radius, point.sine)};
}

// A normal number's value where the distribution has this mean and standard deviation.
constexpr double ShiftedNormal(double normal, double mean, double stddev) {
  return box_muller::ProductPlus(stddev, normal, mean);
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ARGUMENTS_NORMAL_PAIR_H_
