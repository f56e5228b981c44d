#include "dtensor/runtime/kernels/cpu/strided_walk.h"

#include <vector>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "gtest/gtest.h"

namespace dtensor::kernels::cpu {
namespace {

class PackedTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(PackedTest);

TEST_P(PackedTest, OwnMemoryOrACopyInRowMajorOrder) {
  if (GetParam().kind != Device::Kind::kCpu) return;  // reads device memory from here
  const Doubles values = RandomWhole(35, -9, 9);
  const Tensor plain = Make(DType::kF64, {5, 7}, values);
  std::vector<std::byte> scratch;
  EXPECT_EQ(Packed(StridedInput(plain), scratch), plain.raw());
  EXPECT_TRUE(scratch.empty());
  const Tensor transposed = MakeTransposed(DType::kF64, 5, 7, values);
  const auto* copy = static_cast<const double*>(Packed(StridedInput(transposed), scratch));
  EXPECT_EQ(Doubles(copy, copy + 35), values);
}

}  // namespace
}  // namespace dtensor::kernels::cpu
