// Element by element, on random arguments (random_kernels.h).
#include <algorithm>

#include "dtensor/runtime/kernels/comparison.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/random_kernels.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr int kRounds = 100;
constexpr int kMostElements = 4000;

class ElementwiseRandomTest : public RandomKernelTest {
 protected:
  Dims Shape() { return RandomKernelTest::Shape(4, kMostElements); }
  // Operands of planes: permuted, sliced, or one row or column or element for all.
  Twins OfPlanes(DType dtype, const Dims& shape) {
    Dims strides = box_testing::RandomStrides(random_, shape);
    Doubles values(NumElements(shape));
    for (double& value : values) value = static_cast<double>(random_.In(-9, 9));
    int64_t inner = 1;
    for (size_t d = shape.size(); d-- > 0; inner *= shape[d]) {
      if (!random_.Chance(15)) continue;
      strides[d] = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = values[i - static_cast<int64_t>(i) / inner % shape[d] * inner];
      }
    }
    return Lying(dtype, shape, values, strides);
  }
  // Rows that are shorter than what is gathered at once, that are longer, and their ends.
  Dims PlaneShape() {
    const int64_t columns = random_.Of<int64_t>({2, 3, 5, 16, 31, 32, 33, 127, 128, 129, 300, 600});
    const int64_t rows = random_.Of<int64_t>({2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 170, 257, 513});
    Dims shape = {random_.In(1, 3), rows, columns};
    if (random_.Coin()) shape.insert(shape.begin() + random_.Below(4), random_.In(1, 3));
    while (NumElements(shape) > 20'000) --*std::max_element(shape.begin(), shape.end());
    return shape;
  }
  UnaryOp FloatOp() { return static_cast<UnaryOp>(random_.In(3, 15)); }
  // f32 has lost so much where terms of size 1 cancel.
  static double Lost(DType dtype) { return dtype == DType::kF64 ? 1e-12 : 1e-5; }
};
DT_INSTANTIATE_KERNEL_TESTS(ElementwiseRandomTest);

TEST_P(ElementwiseRandomTest, Binary) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    const auto op = static_cast<BinaryOp>(random_.In(0, IsFloat(dtype) ? 5 : 2));
    const Dims shape = Shape();
    const Twins a = In(dtype, shape, -5, 5, true), b = In(dtype, shape, -5, 5, true);
    const Twins out = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(static_cast<int>(op), " ", Describe(a), " ", Describe(b)));
    Both([&](Side of) { return kernels::Binary(of.device, op, of(a), of(b), of(out)); });
    ExpectAlike("Binary", out, 1, 0);
  }
}

TEST_P(ElementwiseRandomTest, Planes) {
  for (int i = 0; i < kRounds / 2 && !HasFailure(); ++i) {
    const DType dtype = Number(), to = Number();
    const Dims shape = PlaneShape();
    const Twins a = OfPlanes(dtype, shape), b = OfPlanes(dtype, shape);
    const Twins which = OfPlanes(DType::kBool, shape);
    const Twins difference = Out(dtype, shape), converted = Out(to, shape);
    const Twins chosen = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(Describe(a), " ", Describe(b), " ", Describe(which)));
    Both([&](Side of) {
      return kernels::Binary(of.device, BinaryOp::kSub, of(a), of(b), of(difference));
    });
    Both([&](Side of) { return kernels::Unary(of.device, UnaryOp::kCopy, of(a), of(converted)); });
    Both([&](Side of) { return Where(of.device, of(which), of(a), of(b), of(chosen)); });
    ExpectAlike("Binary", difference, 0, 0);
    ExpectAlike("Copy", converted, 0, 0);
    ExpectAlike("Where", chosen, 0, 0);
  }
}

// The output is an input's memory, where the other one lies otherwise.
TEST_P(ElementwiseRandomTest, PlanesInPlace) {
  for (int i = 0; i < kRounds / 2 && !HasFailure(); ++i) {
    const DType dtype = Number();
    const Dims shape = PlaneShape();
    Doubles values(NumElements(shape));
    for (double& value : values) value = static_cast<double>(random_.In(-9, 9));
    const Twins a = Lying(dtype, shape, values, RowMajorStrides(shape));
    const Twins b = OfPlanes(dtype, shape), c = OfPlanes(dtype, shape);
    SCOPED_TRACE(absl::StrCat(Describe(a), " ", Describe(b), " ", Describe(c)));
    Both([&](Side of) { return kernels::Binary(of.device, BinaryOp::kSub, of(a), of(b), of(a)); });
    Both([&](Side of) { return AddN(of.device, {of(c), of(a), of(b)}, of(a)); });
    ExpectAlike("in place", a, 0, 0);
  }
}

TEST_P(ElementwiseRandomTest, BinaryGrad) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const auto op = random_.Of({BinaryOp::kDiv, BinaryOp::kMax, BinaryOp::kMin});
    const int operand = random_.Below(2);
    const Dims shape = Shape();
    const Twins a = In(dtype, shape, -3, 3, true), b = In(dtype, shape, -3, 3, true);
    const Twins dy = In(dtype, shape, -5, 5), dx = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(static_cast<int>(op), " ", Describe(a), " ", Describe(b)));
    Both([&](Side of) {
      return kernels::BinaryGrad(of.device, op, operand, of(a), of(b), of(dy), of(dx));
    });
    ExpectAlike("BinaryGrad", dx, 2, 0);
  }
}

TEST_P(ElementwiseRandomTest, Unary) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const auto op = FloatOp();
    const Dims shape = Shape();
    const Twins a = In(dtype, shape, -5, 5, true), out = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(static_cast<int>(op), " ", Describe(a)));
    Both([&](Side of) { return kernels::Unary(of.device, op, of(a), of(out)); });
    ExpectAlike("Unary", out, 2, Lost(dtype));
    const Twins saved = In(dtype, shape, 0.1, 0.9), dy = In(dtype, shape, -5, 5, true);
    const Twins dx = Out(dtype, shape);
    Both([&](Side of) { return UnaryGrad(of.device, op, of(saved), of(dy), of(dx)); });
    ExpectAlike("UnaryGrad", dx, 2, 10 * Lost(dtype));
  }
}

TEST_P(ElementwiseRandomTest, Conversions) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType from = Number(), to = random_.Chance(90) ? Number() : DType::kBool;
    const Dims shape = Shape();
    const Twins a = In(from, shape, -70000, 70000, IsFloat(to)), out = Out(to, shape);
    SCOPED_TRACE(Describe(a));
    Both([&](Side of) { return kernels::Unary(of.device, UnaryOp::kCopy, of(a), of(out)); });
    ExpectAlike("Copy", out, 0, 0);
  }
}

TEST_P(ElementwiseRandomTest, SumsAndScales) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    const Dims shape = Shape();
    const double scale = random_.Of({1.0, 2.0, -3.0, 1e10}), shift = random_.Of({0.0, 1.0, -7.0});
    std::vector<Twins> terms(random_.In(1, kMaxTerms));
    for (Twins& term : terms) term = In(dtype, shape, -5, 5, true);
    const Twins sum = Out(dtype, shape), scaled = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(terms.size(), " terms, scale ", scale, ", ", Describe(terms[0])));
    Both([&](Side of) {
      std::vector<Tensor> tensors;
      for (const Twins& term : terms) tensors.push_back(of(term));
      return AddN(of.device, tensors, of(sum));
    });
    ExpectAlike("AddN", sum, 1, Lost(dtype));
    Both([&](Side of) { return Affine(of.device, of(terms[0]), scale, shift, of(scaled)); });
    ExpectAlike("Affine", scaled, 2, Lost(dtype));
  }
}

TEST_P(ElementwiseRandomTest, Powers) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const double exponent = random_.Of({0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 1.7});
    const Dims shape = Shape();
    const Twins x = In(dtype, shape, -2, 5, true), dy = In(dtype, shape, -2, 2);
    const Twins y = Out(dtype, shape), dx = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(exponent, " ", Describe(x)));
    Both([&](Side of) { return Pow(of.device, of(x), exponent, of(y)); });
    Both([&](Side of) { return PowGrad(of.device, of(x), exponent, of(dy), of(dx)); });
    ExpectAlike("Pow", y, 4, Lost(dtype));
    ExpectAlike("PowGrad", dx, 4, Lost(dtype));
  }
}

TEST_P(ElementwiseRandomTest, ComparisonsAndWhatTheyChoose) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Number();
    const auto op = static_cast<CompareOp>(random_.In(0, 5));
    const Dims shape = Shape();
    const Twins a = In(dtype, shape, -2, 2, true), b = In(dtype, shape, -2, 2, true);
    const Twins which = Out(DType::kBool, shape), out = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(static_cast<int>(op), " ", Describe(a), " ", Describe(b)));
    Both([&](Side of) { return Compare(of.device, op, of(a), of(b), of(which)); });
    Both([&](Side of) { return Where(of.device, of(which), of(a), of(b), of(out)); });
    ExpectAlike("Compare", which, 0, 0);
    ExpectAlike("Where", out, 0, 0);
  }
}

TEST_P(ElementwiseRandomTest, SwiGlu) {
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = Shape();
    const Twins gate = In(dtype, shape, -6, 6), up = In(dtype, shape, -2, 2);
    const Twins dy = In(dtype, shape, -2, 2);
    const Twins y = Out(dtype, shape), dgate = Out(dtype, shape), dup = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(Describe(gate), " ", Describe(up)));
    Both([&](Side of) { return SiluMul(of.device, of(gate), of(up), of(y)); });
    Both([&](Side of) {
      return SiluMulGrad(of.device, of(gate), of(up), of(dy), of(dgate), of(dup));
    });
    ExpectAlike("y", y, 2, Lost(dtype));
    ExpectAlike("dgate", dgate, 2, 10 * Lost(dtype));
    ExpectAlike("dup", dup, 2, Lost(dtype));
  }
}

TEST_P(ElementwiseRandomTest, ClampedSwiGlu) {
  const SwiGluClamp clamp = {1.702, 4};
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const DType dtype = Float();
    const Dims shape = Shape();
    const Twins gate = In(dtype, shape, -6, 6), up = In(dtype, shape, -6, 6);
    const Twins dy = In(dtype, shape, -2, 2);
    const Twins y = Out(dtype, shape), dgate = Out(dtype, shape), dup = Out(dtype, shape);
    SCOPED_TRACE(absl::StrCat(Describe(gate), " ", Describe(up)));
    Both([&](Side of) { return ClampedSwiGlu(of.device, of(gate), of(up), clamp, of(y)); });
    Both([&](Side of) {
      return ClampedSwiGluGrad(of.device, of(gate), of(up), clamp, of(dy), of(dgate), of(dup));
    });
    ExpectAlike("y", y, 2, 5 * Lost(dtype));
    ExpectAlike("dgate", dgate, 2, 20 * Lost(dtype));
    ExpectAlike("dup", dup, 2, 5 * Lost(dtype));
  }
}

}  // namespace
}  // namespace dtensor::kernels
