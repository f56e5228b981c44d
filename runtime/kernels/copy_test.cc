#include "dtensor/runtime/kernels/copy.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

class CopyTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(CopyTest);

TEST_P(CopyTest, IntoPartsOfALargerTensor) {
  const int64_t rows = 40, columns = 33;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kBool}) {
    const Doubles values = Rounded(dtype, RandomWhole(rows * columns, -9, 9));
    for (const Tensor& src :
         {Make(dtype, {rows, columns}, values), MakeTransposed(dtype, rows, columns, values),
          MakeInside(dtype, rows, columns, values)}) {
      const Tensor whole =
          Make(dtype, {rows + 2, columns + 5}, Doubles((rows + 2) * (columns + 5), 1));
      const Tensor part = whole.Narrow(0, 1, rows).Narrow(1, 3, columns);
      ASSERT_THAT(Copy(device(), src, part), IsOk());
      EXPECT_EQ(Read(part), values);
      EXPECT_EQ(Read(whole.Narrow(1, 0, 3)), Doubles((rows + 2) * 3, 1));
      EXPECT_EQ(Read(whole.Narrow(0, rows + 1, 1)), Doubles(columns + 5, 1));
    }
  }
}

TEST_P(CopyTest, IntoATransposedView) {
  const Doubles values = RandomWhole(12, -9, 9);
  const Tensor dst = Make(DType::kI32, {4, 3}, Doubles(12, 0));
  ASSERT_THAT(Copy(device(), Make(DType::kI32, {3, 4}, values), dst.Transpose(0, 1)), IsOk());
  EXPECT_EQ(Read(dst.Transpose(0, 1)), values);
}

// Planes of a larger tensor, with full and partial tiles, from each order of dimensions to another:
// of elements that do and that do not come in packs.
TEST_P(CopyTest, TransposesPlanes) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 37, 66}, {2, 136, 144}}) {
    const int64_t n = shape[0] * shape[1] * shape[2];
    for (const DType dtype : {DType::kBool, DType::kBF16, DType::kF32, DType::kI64}) {
      const Tensor x = Make(dtype, shape, RandomWhole(n, 0, dtype == DType::kBool ? 2 : 200));
      for (const auto& [a, b] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
        const Tensor turned = x.Transpose(a, b);
        const Tensor copy = Duplicate(device(), turned).value();
        EXPECT_TRUE(copy.is_contiguous());
        EXPECT_EQ(Read(copy), Read(turned)) << ToString(dtype) << " " << a << " and " << b;
        ASSERT_THAT(Copy(device(), x, copy.View(shape, x.strides(), 0)), IsOk());
        EXPECT_EQ(Read(copy.View(shape, x.strides(), 0)), Read(x));
      }
    }
  }
}

// More tiles than a launch on a GPU has blocks, which go from one to the next.
TEST_P(CopyTest, TransposesManyTiles) {
  const std::pair<DType, std::vector<int64_t>> cases[] = {{DType::kI64, {600, 16, 24}},
                                                          {DType::kBF16, {600, 16, 24}},
                                                          {DType::kF32, {600, 17, 19}},
                                                          {DType::kI64, {1, 1056, 544}},
                                                          {DType::kF32, {1, 1055, 543}}};
  for (const auto& [dtype, shape] : cases) {
    const Tensor x = Make(dtype, shape, RandomWhole(shape[0] * shape[1] * shape[2], 0, 200));
    const Tensor turned = x.Transpose(1, 2);
    EXPECT_TRUE(Read(Duplicate(device(), turned).value()) == Read(turned)) << ToString(dtype);
  }
}

TEST_P(CopyTest, ManyDimensions) {
  const Tensor x =
      Make(DType::kF32, {2, 3, 2, 3, 2, 3, 2}, RandomWhole(2 * 3 * 2 * 3 * 2 * 3 * 2, -99, 99));
  Tensor turned = x;
  for (int d = 0; d < 3; ++d) turned = turned.Transpose(d, 6 - d);
  EXPECT_EQ(Read(Duplicate(device(), turned).value()), Read(turned));
  const Tensor part = turned.Narrow(1, 1, 2).Narrow(3, 1, 2).Narrow(5, 0, 2);
  EXPECT_EQ(Read(Duplicate(device(), part).value()), Read(part));
}

TEST_P(CopyTest, Broadcasts) {
  const Tensor row = Make(DType::kF32, {1, 3}, {1, 2, 3}), dst = Empty(DType::kF32, {2, 3});
  ASSERT_THAT(Copy(device(), row.BroadcastTo({2, 3}), dst), IsOk());
  EXPECT_EQ(Read(dst), Doubles({1, 2, 3, 1, 2, 3}));
  const Tensor column = Make(DType::kF32, {2, 1}, {4, 5});
  ASSERT_THAT(Copy(device(), column.BroadcastTo({2, 3}), dst), IsOk());
  EXPECT_EQ(Read(dst), Doubles({4, 4, 4, 5, 5, 5}));
  ASSERT_THAT(Copy(device(), Make(DType::kF32, {}, {6}).BroadcastTo({2, 3}), dst), IsOk());
  EXPECT_EQ(Read(dst), Doubles(6, 6));
}

TEST_P(CopyTest, ScalarsOnesAndNothing) {
  const Tensor scalar = Empty(DType::kF32, {}), one = Empty(DType::kF32, {1, 1});
  ASSERT_THAT(Copy(device(), Make(DType::kF32, {}, {3}), scalar), IsOk());
  EXPECT_EQ(Read(scalar), Doubles{3});
  ASSERT_THAT(Copy(device(), Make(DType::kF32, {1, 1}, {4}), one), IsOk());
  EXPECT_EQ(Read(one), Doubles{4});
  EXPECT_THAT(Copy(device(), Empty(DType::kF32, {0, 3}), Empty(DType::kF32, {0, 3})), IsOk());
  const Tensor same = Make(DType::kF32, {2}, {1, 2});
  ASSERT_THAT(Copy(device(), same, same), IsOk());
  EXPECT_EQ(Read(same), Doubles({1, 2}));
}

TEST(Copy, DoesNothingOnMeta) {
  const auto device = MakeMetaDevice();
  auto x = Tensor::Empty(*device, DType::kF32, {1 << 20, 1 << 20});
  ASSERT_THAT(x, IsOk());
  EXPECT_THAT(Copy(*device, *x, x->Transpose(0, 1)), IsOk());
}

}  // namespace
}  // namespace dtensor::kernels
