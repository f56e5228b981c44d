// Batched local matrix products, for all strides and types, against the plain sum.
#include "dtensor/ops/batched_product.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

class BatchedProductTest : public KernelTest {
 protected:
  Doubles Run(const Tensor& a, const Tensor& b, const Dims& shape) {
    const Tensor out = Make(a.dtype(), shape, Doubles(NumElements(shape), 7));  // overwritten
    EXPECT_THAT(internal::BatchedProduct(device(), a, b, out), IsOk());
    return Read(out);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(BatchedProductTest);

// Of two batch dimensions, each of which is 1 where it is broadcast or summed.
struct Shapes {
  Dims a, b, out;
};

// Element (i, j, row, column) of x.
double& At(Doubles& x, const Dims& shape, int64_t i, int64_t j, int64_t row, int64_t column) {
  if (shape[0] == 1) i = 0;
  if (shape[1] == 1) j = 0;
  return x[((i * shape[1] + j) * shape[2] + row) * shape[3] + column];
}

Doubles Reference(const Shapes& s, Doubles a, Doubles b) {
  Doubles out(NumElements(s.out));
  const auto batch = [&](int d) { return s.a[d] == 1 ? s.b[d] : s.a[d]; };
  for (int64_t i = 0; i < batch(0); ++i) {
    for (int64_t j = 0; j < batch(1); ++j) {
      for (int64_t row = 0; row < s.a[2]; ++row) {
        for (int64_t column = 0; column < s.b[3]; ++column) {
          double& sum = At(out, s.out, i, j, row, column);
          for (int64_t k = 0; k < s.a[3]; ++k) {
            sum += At(a, s.a, i, j, row, k) * At(b, s.b, i, j, k, column);
          }
        }
      }
    }
  }
  return out;
}

// All ways in which two batch dimensions of 3 and 2 are broadcast and summed.
std::vector<Shapes> AllShapes(int64_t m, int64_t k, int64_t n) {
  std::vector<Shapes> all;
  for (int mask = 0; mask < 64; ++mask) {
    const auto size = [&](int bit, int64_t size) { return (mask >> bit & 1) != 0 ? 1 : size; };
    const Shapes s = {{size(0, 3), size(1, 2), m, k},
                      {size(2, 3), size(3, 2), k, n},
                      {size(4, 3), size(5, 2), m, n}};
    if (s.out[0] > std::max(s.a[0], s.b[0]) || s.out[1] > std::max(s.a[1], s.b[1])) continue;
    all.push_back(s);
  }
  return all;
}

TEST_P(BatchedProductTest, BroadcastsAndSums) {
  const int64_t sizes[][3] = {{3, 4, 5}, {1, 4, 3}, {3, 1, 2}, {2, 3, 1}};
  for (const auto& [m, k, n] : sizes) {
    for (const Shapes& s : AllShapes(m, k, n)) {
      for (const DType dtype : kFloats) {
        const Doubles a = RandomWhole(NumElements(s.a), -3, 4, 1);
        const Doubles b = RandomWhole(NumElements(s.b), -3, 4, 2);
        EXPECT_EQ(Run(Make(dtype, s.a, a), Make(dtype, s.b, b), s.out), Reference(s, a, b))
            << DimsToString(s.a) << " " << DimsToString(s.b) << " " << DimsToString(s.out);
      }
    }
  }
}

TEST_P(BatchedProductTest, TakesAnyStrides) {
  const Shapes s = {{3, 2, 3, 4}, {3, 2, 4, 5}, {3, 2, 3, 5}};
  const Doubles a = RandomWhole(72, -3, 4, 1), b = RandomWhole(120, -3, 4, 2);
  const Doubles want = Reference(s, a, b);
  for (const DType dtype : kFloats) {
    const Tensor plain_a = Make(dtype, s.a, a), plain_b = Make(dtype, s.b, b);
    // [d0, d1, m, k] that lies in memory as [m, d1, d0, k], and as [d0, d1, k, m]; part of another.
    const auto laid = [&](const Tensor& x, int dim0, int dim1) {
      const Tensor turned = x.Transpose(dim0, dim1);
      return Make(dtype, turned.shape(), Read(turned)).Transpose(dim0, dim1);
    };
    Tensor wide = Make(dtype, {3, 3, 4, 5}, Doubles(180, 7)).Narrow(1, 1, 2);
    EXPECT_THAT(Copy(device(), plain_b, wide), IsOk());
    EXPECT_EQ(Run(laid(plain_a, 0, 2), wide, s.out), want);
    EXPECT_EQ(Run(laid(plain_a, 2, 3), laid(plain_b, 2, 3), s.out), want);
    EXPECT_EQ(Run(laid(plain_a, 0, 3), laid(plain_b, 1, 2), s.out), want);
  }
}

// As the gradient of a sum is: all of its elements are one.
TEST_P(BatchedProductTest, TakesWhatIsExpanded) {
  const Shapes s = {{3, 2, 3, 4}, {3, 2, 4, 5}, {3, 2, 3, 5}};
  const Doubles a = RandomWhole(72, -3, 4, 1), b = RandomWhole(120, -3, 4, 2);
  for (const DType dtype : kFloats) {
    const Tensor two = Make(dtype, {}, {2}), row = Make(dtype, {5}, {1, 2, 3, 4, 5});
    const Tensor all_a = two.BroadcastTo(s.a), all_b = two.BroadcastTo(s.b);
    const Tensor rows_b = row.BroadcastTo(s.b);
    EXPECT_EQ(Run(Make(dtype, s.a, a), all_b, s.out), Reference(s, a, Doubles(120, 2)));
    EXPECT_EQ(Run(all_a, Make(dtype, s.b, b), s.out), Reference(s, Doubles(72, 2), b));
    EXPECT_EQ(Run(Make(dtype, s.a, a), rows_b, s.out), Reference(s, a, Read(rows_b)));
    EXPECT_EQ(Run(all_a, all_b, s.out), Doubles(90, 16));
    EXPECT_EQ(Run(all_a, all_b, {1, 1, 3, 5}), Doubles(15, 96));
    // One row, or one column, for a batch of one A or B.
    EXPECT_EQ(Run(all_a.Narrow(2, 0, 1), all_b.Narrow(0, 0, 1).Narrow(1, 0, 1), {3, 2, 1, 5}),
              Doubles(30, 16));
    EXPECT_EQ(Run(all_a, all_b.Narrow(3, 0, 1), {3, 2, 3, 1}), Doubles(18, 16));
  }
}

// A matrix whose strides are those of neither order, shared by a batch.
TEST_P(BatchedProductTest, TakesOneMatrixOfAnyStridesForAll) {
  const Shapes s = {{3, 2, 3, 4}, {1, 1, 4, 5}, {3, 2, 3, 5}};
  const Doubles a = RandomWhole(72, -3, 4, 1), b = RandomWhole(20, -3, 4, 2);
  for (const DType dtype : kFloats) {
    Doubles apart(40);
    for (size_t i = 0; i < b.size(); ++i) apart[2 * i] = b[i];
    const Tensor every_second = Make(dtype, {4, 5, 2}, apart).Narrow(2, 0, 1);
    const Tensor shared = every_second.Reshape({4, 5})->BroadcastTo({3, 2, 4, 5});
    EXPECT_EQ(Run(Make(dtype, s.a, a), shared, s.out), Reference(s, a, b));
  }
}

// Rows of all batches may lie between each other.
TEST_P(BatchedProductTest, WritesBetweenRows) {
  const Shapes s = {{3, 2, 3, 4}, {3, 2, 4, 5}, {3, 2, 3, 5}};
  const Doubles a = RandomWhole(72, -3, 4, 1), b = RandomWhole(120, -3, 4, 2);
  for (const DType dtype : kFloats) {
    for (const auto& [dim0, dim1] : {std::pair(0, 2), {1, 2}, {0, 1}}) {
      Dims shape = s.out;
      std::swap(shape[dim0], shape[dim1]);
      const Tensor out = Make(dtype, shape, Doubles(90, 7)).Transpose(dim0, dim1);
      EXPECT_THAT(internal::BatchedProduct(device(), Make(dtype, s.a, a), Make(dtype, s.b, b), out),
                  IsOk());
      EXPECT_EQ(Read(out), Reference(s, a, b)) << dim0 << dim1;
    }
  }
}

TEST_P(BatchedProductTest, OfNothingIsZeros) {
  for (const DType dtype : kFloats) {
    EXPECT_EQ(Run(Make(dtype, {2, 2, 0}, {}), Make(dtype, {0, 3}, {}), {2, 2, 3}), Doubles(12, 0));
    EXPECT_EQ(Run(Make(dtype, {0, 2, 1}, {}), Make(dtype, {1, 3}, {1, 1, 1}), {2, 3}),
              Doubles(6, 0));
    EXPECT_TRUE(Run(Make(dtype, {0, 2, 1}, {}), Make(dtype, {1, 3}, {1, 1, 1}), {0, 2, 3}).empty());
  }
}

// 1 more than 256 is no bf16: a sum that is rounded each time would stay there.
TEST_P(BatchedProductTest, SumsOfBf16AreTakenInF32) {
  const int64_t n = 9;
  Doubles terms(n, 1);
  terms[0] = 256;
  // [n, 1, 1] x [n, 1, 1] apart, so that they are no longer sum.
  const Tensor a = Make(DType::kBF16, {n, 1, 1}, terms);
  const Tensor wide = Make(DType::kBF16, {n, 1, 2}, Doubles(2 * n, 1)).Narrow(2, 0, 1);
  EXPECT_EQ(Run(a, wide.Narrow(0, 0, n), {1, 1}), Doubles{264});
  const Tensor rows = Make(DType::kBF16, {n, 2, 1}, [&] {
    Doubles twice;
    for (double term : terms) twice.insert(twice.end(), {term, 2 * term});
    return twice;
  }());
  EXPECT_EQ(Run(rows, wide, {2, 1}), (Doubles{264, 528}));
}

}  // namespace
}  // namespace dtensor::kernels
