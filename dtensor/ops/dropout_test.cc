// Dropout: how much it keeps, that seeds are independent, and that a mask is the same in every
// layout and in the backward. Every assignment of placements: tests/op_rules_test.cc.
#include <cmath>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/one_rank.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAreArray;

constexpr int64_t kCount = 40'000;

std::vector<double> OfOnes(const Maker& make, double p, uint64_t seed) {
  return Values(Dropout(make.F32({200, 200}, std::vector<float>(kCount, 1)), p, seed));
}

// Where both keep, in units of the standard deviation of independent masks.
double Correlation(const std::vector<double>& a, const std::vector<double>& b, size_t shift = 0) {
  double both = 0, one = 0, other = 0, n = 0;
  for (size_t i = 0; i + shift < a.size(); ++i, ++n) {
    both += a[i] != 0 && b[i + shift] != 0;
    one += a[i] != 0;
    other += b[i + shift] != 0;
  }
  const double p = one / n, q = other / n;
  return (both - n * p * q) / std::sqrt(n * p * (1 - p) * q * (1 - q));
}

TEST(DropoutTest, KeepsOneMinusPAndTheMean) {
  OnOneRank([](const Maker& make) {
    for (const double p : {0.01, 0.1, 0.5, 0.9}) {
      const std::vector<double> y = OfOnes(make, p, 7);
      double kept = 0, sum = 0;
      for (double value : y) {
        if (value == 0) continue;
        ASSERT_NEAR(value, 1 / (1 - p), 1e-6 / (1 - p));
        kept += 1;
        sum += value;
      }
      const double deviation = std::sqrt(p * (1 - p) / kCount);  // of the share that is kept
      EXPECT_NEAR(kept / kCount, 1 - p, 4 * deviation);
      EXPECT_NEAR(sum / kCount, 1, 4 * deviation / (1 - p) + 1e-6);
    }
  });
}

TEST(DropoutTest, SeedsAndElementsAreIndependent) {
  OnOneRank([](const Maker& make) {
    const std::vector<double> a = OfOnes(make, .4, 1), b = OfOnes(make, .4, 2);
    EXPECT_EQ(a, OfOnes(make, .4, 1));
    EXPECT_NE(a, b);
    EXPECT_LT(std::abs(Correlation(a, b)), 4);
    EXPECT_LT(std::abs(Correlation(a, OfOnes(make, .4, uint64_t{1} << 32 | 1))), 4);
    for (const size_t shift : {1, 2, 3, 4, 200}) {
      EXPECT_LT(std::abs(Correlation(a, a, shift)), 4) << shift;
    }
    // A mask of less p keeps all that one of more p keeps, since an element's number is the same.
    const std::vector<double> more = OfOnes(make, .7, 1);
    for (int64_t i = 0; i < kCount; ++i) ASSERT_TRUE(a[i] != 0 || more[i] == 0);
  });
}

TEST(DropoutTest, DropsWhateverIsThere) {
  OnOneRank([](const Maker& make) {
    const std::vector<double> mask = OfOnes(make, .5, 3);
    const float nan = std::nanf("");
    const auto y = Values(Dropout(make.F32({200, 200}, std::vector<float>(kCount, nan)), .5, 3));
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(std::isnan(y[i]), mask[i] != 0);
  });
}

TEST(DropoutTest, NothingToDrop) {
  OnOneRank([](const Maker& make) {
    DT_ASSERT_OK_AND_ASSIGN(const auto x, make.F32({3}, {1, 2, 3}));
    DT_ASSERT_OK_AND_ASSIGN(const auto y, Dropout(x, 0, 1));
    EXPECT_TRUE(y.local().SharesStorageWith(x.local()));
    EXPECT_THAT(Values(Dropout(make.Zeros({0, 3}), .5, 1)), testing::IsEmpty());
  });
}

// Values and gradients bit for bit those of one rank: p = 1/2 scales by 2.
TEST(DropoutTest, TheSameMaskInEveryLayout) {
  constexpr int64_t kRows = 7, kColumns = 10;
  const std::vector<float> ones(kRows * kColumns, 1);
  std::vector<double> want;
  OnOneRank([&](const Maker& make) {
    want = Values(Dropout(make.F32({kRows, kColumns}, ones), .5, 11));
  });
  for (const char* text : {"[a, b] []", "[] [b, a]", "[a] [b]", "[a:zigzag] [b x 2]",
                           "[b] [] P(sum: a)", "[] [] P(sum: a, b)", "[] [a] P(avg: b)"}) {
    DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
      DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(mesh, text));
      DT_ASSIGN_OR_RETURN(auto x, Place(context, layout, {kRows, kColumns}, DType::kF32,
                                        std::vector<double>(ones.begin(), ones.end()), 5));
      DT_RETURN_IF_ERROR(x.set_requires_grad(true));
      const TensorOr y = Dropout(x, .5, 11);
      DT_RETURN_IF_ERROR(y.status());
      EXPECT_EQ(y->layout(), layout);  // nothing moved
      EXPECT_THAT(Values(y), ElementsAreArray(want)) << text;
      DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
      EXPECT_THAT(Values(x.grad()), ElementsAreArray(want)) << text;
      return absl::OkStatus();
    }));
  }
}

}  // namespace
}  // namespace dtensor
