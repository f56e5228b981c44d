#include "dtensor/runtime/kernels/scan.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

class ScanTest : public KernelTest {
 protected:
  static Doubles Want(const Doubles& x, const std::vector<int64_t>& shape, bool reverse,
                      const Doubles& start) {
    const int64_t n = shape[1], inner = shape[2];
    Doubles y(x.size());
    for (int64_t o = 0; o < shape[0]; ++o) {
      for (int64_t b = 0; b < inner; ++b) {
        double sum = start.empty() ? 0 : start[o * inner + b];
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = (o * n + (reverse ? n - 1 - i : i)) * inner + b;
          y[at] = sum += x[at];
        }
      }
    }
    return y;
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ScanTest);

// Of whole numbers, whose sums are exact.
TEST_P(ScanTest, AllTypes) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 5, 3},
                                            {1, 1, 1},
                                            {3, 300, 1},
                                            {1, 129, 7},
                                            {2, 128, 2},
                                            {2, 0, 3},
                                            {0, 4, 3},
                                            {2, 4, 0}}) {
    const int64_t numel = shape[0] * shape[1] * shape[2], columns = shape[0] * shape[2];
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
      for (const bool reverse : {false, true}) {
        const Doubles x = RandomWhole(numel, -1, 2), start = RandomWhole(columns, -3, 4);
        const Tensor y = Empty(dtype, shape);
        ASSERT_THAT(CumSum(device(), Make(dtype, shape, x), reverse, Tensor(), y), IsOk());
        EXPECT_EQ(Read(y), Want(x, shape, reverse, {}));
        const Tensor from = Make(AccumulatorOf(dtype), {shape[0], shape[2]}, start);
        ASSERT_THAT(CumSum(device(), Make(dtype, shape, x), reverse, from, y), IsOk());
        EXPECT_EQ(Read(y), Want(x, shape, reverse, start)) << ToString(dtype);
      }
    }
  }
}

// 16-bit floats would stop at 256.
TEST_P(ScanTest, RoundsOnce) {
  const Tensor x = Make(DType::kBF16, {1, 1000, 1}, Doubles(1000, 1)),
               y = Empty(DType::kBF16, {1, 1000, 1});
  ASSERT_THAT(CumSum(device(), x, false, Tensor(), y), IsOk());
  const Doubles got = Read(y);
  EXPECT_EQ(got[255], 256);
  EXPECT_EQ(got[999], 1000);
}

TEST_P(ScanTest, IntegersWrapAround) {
  const double most = std::numeric_limits<int32_t>::max();
  const Tensor x = Make(DType::kI32, {1, 3, 1}, {most, 1, 1}), y = Empty(DType::kI32, {1, 3, 1});
  ASSERT_THAT(CumSum(device(), x, false, Tensor(), y), IsOk());
  EXPECT_EQ(Read(y), (Doubles{most, -most - 1, -most}));
}

// The order that scan_args.h states: the same bits on all devices.
TEST_P(ScanTest, InChunks) {
  const int64_t n = 400;
  const Doubles x = Rounded(DType::kF32, RandomValues(n, -1, 1));
  Doubles want;
  float before = 0;
  for (int64_t begin = 0; begin < n; begin += 128) {
    float sum = before, chunk = 0;
    for (int64_t i = begin; i < begin + 128 && i < n; ++i) {
      sum += static_cast<float>(x[i]);
      chunk += static_cast<float>(x[i]);
      want.push_back(sum);
    }
    before += chunk;
  }
  const Tensor y = Empty(DType::kF32, {1, n, 1});
  ASSERT_THAT(CumSum(device(), Make(DType::kF32, {1, n, 1}, x), false, Tensor(), y), IsOk());
  EXPECT_EQ(Read(y), want);
}

TEST_P(ScanTest, OfPartsAndInPlace) {
  const Doubles x = RandomWhole(2 * 9 * 3, -5, 6);
  const Tensor whole = Make(DType::kF64, {2, 9, 3}, x), part = whole.Narrow(1, 2, 5);
  const Doubles of_part = Read(part);
  ASSERT_THAT(CumSum(device(), part, true, Tensor(), part), IsOk());
  EXPECT_EQ(Read(part), Want(of_part, {2, 5, 3}, true, {}));
  EXPECT_EQ(Read(whole.Narrow(1, 0, 2)), Read(Make(DType::kF64, {2, 9, 3}, x).Narrow(1, 0, 2)));
}

}  // namespace
}  // namespace dtensor::kernels
