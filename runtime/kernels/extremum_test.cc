#include "dtensor/runtime/kernels/extremum.h"

#include <limits>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kNumbers[] = {DType::kF32, DType::kBF16, DType::kF16,
                              DType::kF64, DType::kI32,  DType::kI64};

class ExtremumTest : public KernelTest {
 protected:
  // Over shards of `dim`, columns [cuts[i], cuts[i + 1]).
  Doubles ArgMaxInParts(const Tensor& x, int dim, const std::vector<int64_t>& cuts) {
    Dims kept = x.shape();
    kept.erase(kept.begin() + dim);
    const int64_t rows = NumElements(kept), shards = static_cast<int64_t>(cuts.size()) - 1;
    const Tensor all = Empty(DType::kI64, {shards, rows, 2}), out = Empty(DType::kI64, {rows});
    for (int64_t p = 0; p < shards; ++p) {
      const int64_t begin = cuts[p], end = cuts[p + 1];
      EXPECT_THAT(ArgMaxStats(device(), x.Narrow(dim, begin, end - begin), dim,
                              IndexSet::Interval(begin, end), all.Narrow(0, p, 1)),
                  IsOk());
    }
    EXPECT_THAT(ArgMaxMerge(device(), all, out), IsOk());
    return Read(out);
  }
  Doubles ArgMax(const Tensor& x, int dim) { return ArgMaxInParts(x, dim, {0, x.size(dim)}); }
  Doubles Ties(const Tensor& x, const Tensor& extremum, absl::Span<const int> dims) {
    const Tensor count = Empty(DType::kI64, extremum.shape());
    EXPECT_THAT(CountTies(device(), x, extremum, dims, count), IsOk());
    return Read(count);
  }
  Doubles Share(const Tensor& x, const Tensor& extremum, absl::Span<const int> dims,
                const Doubles& count, const Tensor& dy) {
    const Tensor dx = Empty(x.dtype(), x.shape());
    const Tensor counts = Make(DType::kI64, extremum.shape(), count);
    EXPECT_THAT(ShareAmongTies(device(), x, extremum, dims, counts, dy, dx), IsOk());
    return Read(dx);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(ExtremumTest);

TEST_P(ExtremumTest, ArgMaxIsTheFirstOfTheLargest) {
  for (const DType dtype : kNumbers) {
    const Tensor x = Make(dtype, {3, 4}, {1, 7, 7, -2, -3, -1, -3, -1, 0, 0, 0, 0});
    EXPECT_EQ(ArgMax(x, 1), (Doubles{1, 1, 0}));
    EXPECT_EQ(ArgMax(x, 0), (Doubles{0, 0, 0, 2}));
    EXPECT_EQ(ArgMax(x.Transpose(0, 1), 0), (Doubles{1, 1, 0}));
    for (const int64_t n : {1, 5, 33, 100}) {
      const Doubles values = RandomWhole(6 * n, -50, 50, n);
      Doubles want;
      for (size_t row = 0; row < values.size(); row += n) {
        want.push_back(
            static_cast<double>(std::max_element(values.begin() + row, values.begin() + row + n) -
                                values.begin() - row));
      }
      EXPECT_EQ(ArgMax(Make(dtype, {6, n}, values), 1), want);
      EXPECT_EQ(ArgMaxInParts(Make(dtype, {6, n}, values), 1, {0, 0, n / 3, n / 3, n}), want);
    }
  }
}

TEST_P(ExtremumTest, ArgMaxOfWhatIsNoNumber) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(
        dtype, {4, 4},
        {1, kNaN, kInf, kNaN, -kInf, -kInf, -kInf, -kInf, -0., 0, -0., -1, kInf, 1, kInf, kNaN});
    const Doubles want = {1, 0, 0, 3};
    EXPECT_EQ(ArgMax(x, 1), want);
    EXPECT_EQ(ArgMax(x.Transpose(0, 1), 0), want);
    EXPECT_EQ(ArgMaxInParts(x, 1, {0, 1, 3, 4}), want);
  }
}

// The least integers are as good as any; an empty shard has no part in it.
TEST_P(ExtremumTest, ArgMaxOfTheLeastAndTheMost) {
  const double least = -0x1p63;
  const Tensor x = Make(DType::kI64, {2, 3}, {least, least, least, least, 0x1p62, 0x1p62});
  EXPECT_EQ(ArgMaxInParts(x, 1, {0, 0, 2, 3}), (Doubles{0, 1}));
}

TEST_P(ExtremumTest, ArgMaxOfDealtIndices) {
  const dtensor::IndexRun dealt[] = {{1, 1, 4, 2}};  // 1, 5
  const Tensor x = Make(DType::kF32, {2, 2}, {1, 2, 3, 3}), stats = Empty(DType::kI64, {2, 2});
  ASSERT_THAT(ArgMaxStats(device(), x, 1, IndexSet::FromIntervals(dealt), stats), IsOk());
  const Doubles got = Read(stats);
  EXPECT_EQ(got[1], 5);
  EXPECT_EQ(got[3], 1);
}

TEST_P(ExtremumTest, CountsTies) {
  for (const DType dtype : kNumbers) {
    const Tensor x = Make(dtype, {2, 3, 2}, {1, 5, 3, 5, 3, 2, 4, 4, 4, 4, 0, 1});
    const Tensor wide = MakeInside(dtype, 6, 2, Read(x)).View({2, 3, 2}, {15, 5, 1}, 0);
    for (const Tensor& view : {x, wide}) {
      EXPECT_EQ(Ties(view, Make(dtype, {2, 2}, {3, 5, 4, 4}), {1}), (Doubles{2, 2, 2, 2}));
      EXPECT_EQ(Ties(view, Make(dtype, {2}, {5, 4}), {1, 2}), (Doubles{2, 4}));
      EXPECT_EQ(Ties(view, Make(dtype, {3}, {4, 4, 3}), {0, 2}), (Doubles{2, 2, 1}));
      EXPECT_EQ(Ties(view, Make(dtype, {}, {4}), {0, 1, 2}), (Doubles{4}));
    }
  }
  EXPECT_EQ(Ties(Empty(DType::kF32, {2, 0}), Make(DType::kF32, {2}, {1, 2}), {1}), (Doubles{0, 0}));
  EXPECT_EQ(Ties(Empty(DType::kF32, {0, 2}), Empty(DType::kF32, {0}), {1}), Doubles());
}

TEST_P(ExtremumTest, SharesGradientsEvenly) {
  for (const DType dtype : kFloats) {
    const Tensor x = Make(dtype, {2, 4}, {1, 5, 5, 0, 7, 7, 7, 7});
    const Tensor max = Make(dtype, {2}, {5, 7}), dy = Make(dtype, {2}, {3, 8});
    EXPECT_EQ(Share(x, max, {1}, {2, 4}, dy), (Doubles{0, 1.5, 1.5, 0, 2, 2, 2, 2}));
    // Two more lie on other shards.
    EXPECT_EQ(Share(x, max, {1}, {4, 4}, dy), (Doubles{0, .75, .75, 0, 2, 2, 2, 2}));
    const Tensor whole = Make(dtype, {}, {7}), one = Make(dtype, {}, {1});
    EXPECT_EQ(Share(x, whole, {0, 1}, {4}, one), (Doubles{0, 0, 0, 0, .25, .25, .25, .25}));
    // As PyTorch's: where the result is NaN, so are all gradients.
    ExpectNear(Share(Make(dtype, {2}, {kNaN, 1}), Make(dtype, {}, {kNaN}), {0}, {0}, one),
               {kNaN, kNaN}, 0, 0);
  }
  EXPECT_EQ(Share(Empty(DType::kF32, {2, 0}), Make(DType::kF32, {2}, {1, 2}), {1}, {1, 1},
                  Make(DType::kF32, {2}, {1, 2})),
            Doubles());
}

}  // namespace
}  // namespace dtensor::kernels
