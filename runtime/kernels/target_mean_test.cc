#include <cmath>
#include <limits>

#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kIgnore = -100;

class TargetMeanTest : public KernelTest {
 protected:
  Doubles Stats(const Tensor& loss, const Tensor& targets) {
    const Tensor stats = Empty(DType::kF64, {2});
    EXPECT_THAT(TargetMeanStats(device(), loss, targets, kIgnore, stats), IsOk());
    return Read(stats);
  }
  // (mean, count).
  Doubles Merge(DType dtype, const Doubles& stats) {
    const int64_t shards = static_cast<int64_t>(stats.size()) / 2;
    const Tensor mean = Empty(dtype, {}), count = Empty(DType::kF64, {});
    EXPECT_THAT(TargetMeanMerge(device(), Make(DType::kF64, {shards, 2}, stats), mean, count),
                IsOk());
    return {Read(mean)[0], Read(count)[0]};
  }
  Doubles Grad(const Tensor& targets, double count, const Tensor& dmean) {
    const Tensor dloss = Empty(dmean.dtype(), targets.shape());
    EXPECT_THAT(
        TargetMeanGrad(device(), targets, kIgnore, Make(DType::kF64, {}, {count}), dmean, dloss),
        IsOk());
    return Read(dloss);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(TargetMeanTest);

TEST_P(TargetMeanTest, OfWhatIsNotIgnored) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const DType id : {DType::kI32, DType::kI64}) {
      const Tensor targets = Make(id, {4}, {3, kIgnore, 0, 7});
      const Tensor loss = Make(dtype, {4}, {1, 100, 2, 6});
      EXPECT_EQ(Stats(loss, targets), (Doubles{9, 3}));
      EXPECT_EQ(Grad(targets, 4, Make(dtype, {}, {2})), (Doubles{.5, 0, .5, .5}));
    }
    EXPECT_EQ(Merge(dtype, {9, 3}), (Doubles{3, 3}));
    EXPECT_EQ(Merge(dtype, {9, 3, 0, 0, 3, 1}), (Doubles{3, 4}));
  }
}

// What is ignored is not even read: it may be no number.
TEST_P(TargetMeanTest, OfNothing) {
  const Tensor targets = Make(DType::kI32, {2}, {kIgnore, kIgnore});
  EXPECT_EQ(Stats(Make(DType::kF32, {2}, {kNaN, kNaN}), targets), (Doubles{0, 0}));
  EXPECT_EQ(Stats(Empty(DType::kF32, {0}), Empty(DType::kI32, {0})), (Doubles{0, 0}));
  EXPECT_TRUE(std::isnan(Merge(DType::kF32, {0, 0})[0]));
  EXPECT_EQ(Grad(targets, 0, Make(DType::kF32, {}, {1})), (Doubles{0, 0}));
}

// f32 would stop at 2^24.
TEST_P(TargetMeanTest, CountsAndAddsInF64) {
  EXPECT_EQ(Merge(DType::kF32, {0x1p24, 0x1p24, 1, 1})[1], 0x1p24 + 1);
  const Tensor loss = Make(DType::kF32, {3}, {0x1p24, 1, 1}),
               ids = Make(DType::kI32, {3}, {0, 0, 0});
  EXPECT_EQ(Stats(loss, ids), (Doubles{0x1p24 + 2, 3}));
}

TEST_P(TargetMeanTest, AnyStrides) {
  const Tensor loss = Make(DType::kF32, {1}, {2}).BroadcastTo({3});
  const Tensor ids = Make(DType::kI64, {3, 2}, {0, kIgnore, 1, 0, kIgnore, 0});
  const Tensor column = ids.View({3}, {2}, 0);
  EXPECT_EQ(Stats(loss, column), (Doubles{4, 2}));
  EXPECT_EQ(Grad(column, 2, Make(DType::kF32, {}, {1})), (Doubles{.5, .5, 0}));
}

}  // namespace
}  // namespace dtensor::kernels
