#include <string>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

using ::testing::HasSubstr;

// Rows 1, 2, 5, 6 and 9 of 11.
IndexSet SomeRows() {
  const dtensor::IndexRun runs[] = {{1, 2, 0, 1}, {5, 2, 0, 1}, {9, 1, 0, 1}};
  return IndexSet::FromIntervals(runs);
}

class EmbeddingTest : public KernelTest {
 protected:
  Doubles RunGrad(const Tensor& ids, const Tensor& dy, const IndexSet& rows) {
    const Tensor dtable = Empty(dy.dtype(), {rows.size(), dy.shape().back()});
    EXPECT_THAT(EmbeddingGrad(device(), ids, dy, rows, dtable), IsOk());
    return Read(dtable);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(EmbeddingTest);

TEST_P(EmbeddingTest, CopiesRowsOrZeros) {
  const int64_t d = 7;
  const IndexSet rows = SomeRows();
  const Doubles table = RandomWhole(rows.size() * d, -9, 9);
  const Doubles ids = {0, 1, 2, 9, 5, 10, 6, 2};
  for (const DType id_type : {DType::kI32, DType::kI64}) {
    for (const DType dtype : kFloats) {
      const Tensor y = Empty(dtype, {2, 4, d});
      ASSERT_THAT(Embedding(device(), Make(id_type, {2, 4}, ids),
                            Make(dtype, {rows.size(), d}, table), rows, 11, y),
                  IsOk());
      const Doubles got = Read(y);
      for (size_t t = 0; t < ids.size(); ++t) {
        int64_t position = -1;
        for (int64_t r = 0; r < rows.size(); ++r) {
          if (rows.At(r) == ids[t]) position = r;
        }
        for (int64_t i = 0; i < d; ++i) {
          ASSERT_EQ(got[t * d + i], position < 0 ? 0 : table[position * d + i]) << t;
        }
      }
    }
  }
}

// The partial results of shards add up to the whole: what a row-sharded embedding relies on.
TEST_P(EmbeddingTest, ShardsAddUpToTheWhole) {
  const int64_t vocabulary = 10, d = 3;
  const Doubles table = RandomWhole(vocabulary * d, 1, 9), ids = RandomWhole(40, 0, 10);
  const Tensor id = Make(DType::kI32, {40}, ids), all = Make(DType::kF32, {vocabulary, d}, table);
  const Tensor whole = Empty(DType::kF32, {40, d});
  ASSERT_THAT(Embedding(device(), id, all, IndexSet::Interval(0, vocabulary), vocabulary, whole),
              IsOk());
  Doubles sum(40 * d, 0);
  for (const auto& [begin, end] : {std::pair(0, 4), std::pair(4, 10), std::pair(10, 10)}) {
    const Tensor part = Empty(DType::kF32, {40, d});
    ASSERT_THAT(Embedding(device(), id, all.Narrow(0, begin, end - begin),
                          IndexSet::Interval(begin, end), vocabulary, part),
                IsOk());
    const Doubles values = Read(part);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  EXPECT_EQ(sum, Read(whole));
}

TEST_P(EmbeddingTest, ViewsOfIdsAndTables) {
  const Doubles table = RandomWhole(4 * 5, -9, 9), ids = {3, 0, 1, 1, 2, 3};
  const IndexSet rows = IndexSet::Interval(0, 4);
  const Tensor y = Empty(DType::kF32, {2, 3, 5}), z = Empty(DType::kF32, {2, 3, 5});
  ASSERT_THAT(Embedding(device(), Make(DType::kI32, {2, 3}, ids), Make(DType::kF32, {4, 5}, table),
                        rows, 4, y),
              IsOk());
  ASSERT_THAT(Embedding(device(), MakeTransposed(DType::kI32, 2, 3, ids),
                        MakeTransposed(DType::kF32, 4, 5, table), rows, 4, z),
              IsOk());
  EXPECT_EQ(Read(y), Read(z));
}

TEST_P(EmbeddingTest, AnIdOutOfRangeFailsTheDevice) {
  const Tensor table = Make(DType::kF32, {2, 2}, {1, 2, 3, 4}), y = Empty(DType::kF32, {3, 2});
  // Another rank's row 1 must not make this rank accept 5.
  (void)Embedding(device(), Make(DType::kI32, {3}, {0, 5, 1}), table, IndexSet::Interval(0, 2), 4,
                  y);
  const absl::Status failure = device().Synchronize();
  EXPECT_THAT(failure, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("5")));
  EXPECT_THAT(failure, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("[0, 4)")));
  EXPECT_THAT(device().failure(), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_P(EmbeddingTest, ANegativeIdFailsTheDevice) {
  const Tensor table = Make(DType::kF32, {4, 2}, Doubles(8, 1)), y = Empty(DType::kF32, {1, 2});
  (void)Embedding(device(), Make(DType::kI64, {1}, {-1}), table, IndexSet::Interval(0, 4), 4, y);
  EXPECT_THAT(device().Synchronize(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("-1")));
}

TEST_P(EmbeddingTest, GradSumsTheTokensOfEachRow) {
  const int64_t d = 19;
  const IndexSet rows = SomeRows();
  const Doubles ids = RandomWhole(60, 0, 11, 1), dy = RandomWhole(60 * d, -4, 5, 2);
  Doubles want(rows.size() * d, 0);
  for (int64_t r = 0; r < rows.size(); ++r) {
    for (int64_t t = 0; t < 60; ++t) {
      if (ids[t] != rows.At(r)) continue;
      for (int64_t i = 0; i < d; ++i) want[r * d + i] += dy[t * d + i];
    }
  }
  for (const DType id_type : {DType::kI32, DType::kI64}) {
    const Tensor id = Make(id_type, {6, 10}, ids);
    for (const DType dtype : kFloats) {
      EXPECT_EQ(RunGrad(id, Make(dtype, {6, 10, d}, dy), rows), Rounded(dtype, want));
    }
  }
  const Tensor transposed = MakeTransposed(DType::kF32, 60, d, dy);
  EXPECT_EQ(RunGrad(Make(DType::kI32, {60}, ids), transposed, rows), want);
}

TEST_P(EmbeddingTest, GradAccumulatesNarrowFloatsInF32) {
  const Tensor ids = Make(DType::kI32, {1000}, Doubles(1000, 0));
  const Tensor dy = Make(DType::kBF16, {1000, 2}, Doubles(2000, 1));
  EXPECT_EQ(RunGrad(ids, dy, IndexSet::Interval(0, 1)), Doubles({1000, 1000}));
}

// In ascending order: f32 sums of a shard are bit by bit those of the whole table.
TEST_P(EmbeddingTest, GradOfAShardHasTheBitsOfTheWhole) {
  const int64_t d = 5;
  const Tensor ids = Make(DType::kI32, {200}, RandomWhole(200, 0, 6, 1));
  const Tensor dy = Make(DType::kF32, {200, d}, RandomValues(200 * d, -1, 1, 2));
  const Doubles whole = RunGrad(ids, dy, IndexSet::Interval(0, 6));
  const Doubles part = RunGrad(ids, dy, IndexSet::Interval(2, 5));
  EXPECT_EQ(part, Doubles(whole.begin() + 2 * d, whole.begin() + 5 * d));
}

TEST_P(EmbeddingTest, NoElements) {
  const IndexSet rows = IndexSet::Interval(0, 4), none;
  const Tensor table = Make(DType::kF32, {4, 3}, Doubles(12, 1));
  const Tensor no_ids = Empty(DType::kI32, {0}), ids = Make(DType::kI32, {2}, {0, 3});
  EXPECT_THAT(Embedding(device(), no_ids, table, rows, 4, Empty(DType::kF32, {0, 3})), IsOk());
  EXPECT_THAT(
      Embedding(device(), ids, Empty(DType::kF32, {4, 0}), rows, 4, Empty(DType::kF32, {2, 0})),
      IsOk());
  const Tensor y = Empty(DType::kF32, {2, 3});
  ASSERT_THAT(Embedding(device(), ids, Empty(DType::kF32, {0, 3}), none, 4, y), IsOk());
  EXPECT_EQ(Read(y), Doubles(6, 0));
  EXPECT_EQ(RunGrad(no_ids, Empty(DType::kF32, {0, 3}), rows), Doubles(12, 0));
  EXPECT_EQ(RunGrad(ids, Make(DType::kF32, {2, 3}, Doubles(6, 1)), none), Doubles());
  EXPECT_EQ(RunGrad(ids, Empty(DType::kF32, {2, 0}), rows), Doubles());
}

}  // namespace
}  // namespace dtensor::kernels
