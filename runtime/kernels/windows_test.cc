#include "dtensor/runtime/kernels/windows.h"

#include <cstdint>
#include <random>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

struct Case {
  int64_t outer, n, inner, row, windows, size;
  WindowSteps steps;

  int64_t x_elements() const { return outer * n * inner * row; }
  int64_t y_elements() const { return outer * windows * inner * size * row; }
  // Calls fn(x, y) with the places, row-major, of each element of y, and of what it is in x (-1:
  // nothing), in ascending order of y's places.
  template <typename Fn>
  void ForEach(Fn fn) const {
    int64_t at = 0;
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < windows; ++i) {
        for (int64_t b = 0; b < inner; ++b) {
          for (int64_t j = 0; j < size; ++j) {
            const int64_t p = steps.first + i * steps.step + j * steps.dilation;
            for (int64_t c = 0; c < row; ++c, ++at) {
              fn(0 <= p && p < n ? ((o * n + p) * inner + b) * row + c : -1, at);
            }
          }
        }
      }
    }
  }
};

const Case kCases[] = {
    {1, 5, 1, 1, 5, 3, {-1, 1, 1}},   // a convolution that keeps the size
    {2, 8, 3, 4, 4, 2, {0, 2, 1}},    // patches
    {2, 9, 2, 8, 3, 3, {-2, 3, 2}},   // dilated
    {1, 4, 1, 16, 6, 2, {-3, 2, 1}},  // windows in front of x, and behind it
    {3, 6, 2, 5, 4, 2, {1, 1, 7}},    // windows that reach over x
    {2, 0, 2, 3, 2, 2, {0, 1, 1}},    // of nothing
    {2, 3, 2, 3, 0, 2, {0, 1, 1}},    // no windows
    {2, 3, 2, 3, 3, 0, {0, 1, 1}},    // windows of nothing
    {1, 700, 2, 12, 350, 5, {-2, 2, 1}},
};

class WindowsTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(WindowsTest);

TEST_P(WindowsTest, AllTypes) {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32,
                              DType::kI64, DType::kBool}) {
      const double value = dtype == DType::kBool ? 1 : 7;
      const Doubles x = RandomWhole(c.x_elements(), 0, dtype == DType::kBool ? 2 : 100);
      Doubles want(c.y_elements());
      c.ForEach([&](int64_t from, int64_t at) { want[at] = from < 0 ? value : x[from]; });
      const Tensor y = Empty(dtype, {c.outer, c.windows, c.inner, c.size, c.row});
      ASSERT_THAT(
          Windows(device(), Make(dtype, {c.outer, c.n, c.inner, c.row}, x), c.steps, value, y),
          IsOk());
      EXPECT_EQ(Read(y), want) << ToString(dtype);
    }
  }
}

TEST_P(WindowsTest, Grad) {
  for (const Case& c : kCases) {
    for (const DType dtype : kFloats) {
      const Doubles dy = Rounded(dtype, RandomValues(c.y_elements(), -1, 1));
      Doubles want(c.x_elements());
      c.ForEach([&](int64_t to, int64_t at) {
        if (to >= 0) want[to] += dy[at];
      });
      const Tensor dx = Empty(dtype, {c.outer, c.n, c.inner, c.row});
      ASSERT_THAT(
          WindowsGrad(device(), Make(dtype, {c.outer, c.windows, c.inner, c.size, c.row}, dy),
                      c.steps, dx),
          IsOk());
      ExpectNear(Read(dx), want, Epsilon(dtype), 1e-6);
    }
  }
}

// Parts of larger tensors along dimension 1, whose rows are aligned otherwise than their own size.
TEST_P(WindowsTest, OfAndInParts) {
  for (const int64_t row : {1, 3, 8}) {
    const Case c = {2, 5, 2, row, 4, 3, {-1, 1, 1}};
    const Doubles x = RandomWhole(2 * 9 * 2 * row, 0, 100);
    const Tensor whole = Make(DType::kF32, {2, 9, 2, row}, x);
    const Tensor part = whole.Narrow(1, 3, 5);
    const Tensor into = Make(DType::kF32, {2, 7, 2, 3, row}, Doubles(2 * 7 * 2 * 3 * row, -1));
    ASSERT_THAT(Windows(device(), part, c.steps, 0, into.Narrow(1, 2, 4)), IsOk());
    const Doubles of_part = Read(part);
    Doubles want(c.y_elements());
    c.ForEach([&](int64_t from, int64_t at) { want[at] = from < 0 ? 0 : of_part[from]; });
    EXPECT_EQ(Read(into.Narrow(1, 2, 4)), want);
    EXPECT_EQ(Read(into.Narrow(1, 0, 2)), Doubles(2 * 2 * 2 * 3 * row, -1));
    EXPECT_EQ(Read(into.Narrow(1, 6, 1)), Doubles(2 * 2 * 3 * row, -1));

    const Tensor dx = Empty(DType::kF32, {2, 5, 2, row});
    ASSERT_THAT(WindowsGrad(device(), into.Narrow(1, 2, 4), c.steps, dx), IsOk());
    Doubles sums(c.x_elements());
    c.ForEach([&](int64_t to, int64_t at) {
      if (to >= 0) sums[to] += want[at];
    });
    EXPECT_EQ(Read(dx), sums);
  }
}

TEST_P(WindowsTest, RandomShapes) {
  std::mt19937 random(20261129);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 60; ++i) {
    const Case c = {draw(1, 3),
                    draw(1, 12),
                    draw(1, 3),
                    draw(1, 9),
                    draw(1, 8),
                    draw(1, 5),
                    {draw(-8, 8), draw(1, 4), draw(1, 4)}};
    const Doubles x = RandomWhole(c.x_elements(), 0, 100, i);
    const Tensor y = Empty(DType::kF32, {c.outer, c.windows, c.inner, c.size, c.row});
    ASSERT_THAT(
        Windows(device(), Make(DType::kF32, {c.outer, c.n, c.inner, c.row}, x), c.steps, -1, y),
        IsOk());
    Doubles want(c.y_elements()), sums(c.x_elements());
    c.ForEach([&](int64_t from, int64_t at) {
      want[at] = from < 0 ? -1 : x[from];
      if (from >= 0) sums[from] += x[from];
    });
    EXPECT_EQ(Read(y), want);
    const Tensor dx = Empty(DType::kF32, {c.outer, c.n, c.inner, c.row});
    ASSERT_THAT(WindowsGrad(device(), y, c.steps, dx), IsOk());
    EXPECT_EQ(Read(dx), sums);
  }
}

}  // namespace
}  // namespace dtensor::kernels
