#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/elementwise.h"
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

// As many unequal runs as no kernel has among its arguments: of 60 rows, those below at[i + 1] from
// at[i] on, for each even i.
IndexSet ManyRuns() {
  const int64_t at[] = {0, 1, 3, 5, 8, 11, 12, 16, 20, 21, 30, 35, 40, 47};
  std::vector<dtensor::IndexRun> runs;
  for (size_t i = 0; i < std::size(at); i += 2) runs.push_back({at[i], at[i + 1] - at[i], 0, 1});
  return IndexSet::FromIntervals(runs);
}

class EmbeddingTest : public KernelTest {
 protected:
  Doubles RunGrad(const Tensor& ids, const Tensor& dy, const IndexSet& rows) {
    const Tensor dtable = Empty(dy.dtype(), {rows.size(), dy.shape().back()});
    EXPECT_THAT(Fill(device(), dtable, 7), IsOk());  // rows without tokens are zeros
    EXPECT_THAT(EmbeddingGrad(device(), ids, dy, rows, dtable), IsOk());
    return Read(dtable);
  }
};
DT_INSTANTIATE_KERNEL_TESTS(EmbeddingTest);

int64_t PositionOf(const IndexSet& rows, double id) {
  for (int64_t r = 0; r < rows.size(); ++r) {
    if (rows.At(r) == id) return r;
  }
  return -1;
}

TEST_P(EmbeddingTest, CopiesRowsOrZeros) {
  const Doubles ids = {0, 1, 2, 9, 5, 10, 6, 2, 40, 46};
  for (const IndexSet& rows : {SomeRows(), ManyRuns()}) {
    for (const int64_t d : {7, 16, 520}) {
      const Doubles table = RandomWhole(rows.size() * d, -9, 9);
      for (const DType id_type : {DType::kI32, DType::kI64}) {
        for (const DType dtype : kFloats) {
          const Tensor y = Empty(dtype, {2, 5, d});
          ASSERT_THAT(Embedding(device(), Make(id_type, {2, 5}, ids),
                                Make(dtype, {rows.size(), d}, table), rows, 60, y),
                      IsOk());
          const Doubles got = Read(y);
          for (size_t t = 0; t < ids.size(); ++t) {
            const int64_t position = PositionOf(rows, ids[t]);
            for (int64_t i = 0; i < d; ++i) {
              ASSERT_EQ(got[t * d + i], position < 0 ? 0 : table[position * d + i]) << t;
            }
          }
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
  const IndexSet rows = IndexSet::Interval(0, 4);
  const Doubles ids = {3, 0, 1, 1, 2, 3};
  for (const int64_t d : {5, 8}) {
    const Doubles table = RandomWhole(4 * d, -9, 9);
    const auto run = [&](const Tensor& id, const Tensor& rows_of_table) {
      const Tensor y = Empty(DType::kF32, {2, 3, d});
      EXPECT_THAT(Embedding(device(), id, rows_of_table, rows, 4, y), IsOk());
      return Read(y);
    };
    const Doubles want = run(Make(DType::kI32, {2, 3}, ids), Make(DType::kF32, {4, d}, table));
    const Tensor other_ids = MakeTransposed(DType::kI32, 2, 3, ids);
    EXPECT_EQ(run(other_ids, MakeTransposed(DType::kF32, 4, d, table)), want);
    EXPECT_EQ(run(other_ids, MakeInside(DType::kF32, 4, d, table)), want);
    // Rows are whole pieces of memory, but begin within one.
    const Tensor wide = Make(DType::kF32, {4, 2 * d}, RandomWhole(8 * d, -9, 9));
    const Tensor inside = wide.Narrow(1, 1, d);
    EXPECT_EQ(run(other_ids, inside), run(other_ids, Make(DType::kF32, {4, d}, Read(inside))));
  }
}

TEST_P(EmbeddingTest, AnIdOutOfRangeFailsTheDevice) {
  const Tensor table = Make(DType::kF32, {2, 2}, {1, 2, 3, 4}), y = Empty(DType::kF32, {3, 2});
  // Another rank's row 1 must not make this rank accept 5.
  (void)Embedding(device(), Make(DType::kI32, {3}, {0, 5, 1}), table, IndexSet::Interval(0, 2), 4,
                  y);
  const absl::Status failure =
      absl::OutOfRangeError("Embedding: id 5 at position 1 is outside [0, 4)");
  EXPECT_EQ(device().Synchronize(), failure);
  EXPECT_EQ(device().failure(), failure);
}

// Many threads find one at a time: what is told is of one of them.
TEST_P(EmbeddingTest, ManyIdsOutOfRangeAreOneFailure) {
  constexpr int64_t kTokens = 3000, kMore = 100000;
  Doubles ids(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) ids[t] = static_cast<double>(t < 10 ? 0 : t + kMore);
  const Tensor table = Make(DType::kF32, {4, 2}, Doubles(8, 1));
  (void)Embedding(device(), Make(DType::kI64, {kTokens}, ids), table, IndexSet::Interval(0, 4), 4,
                  Empty(DType::kF32, {kTokens, 2}));
  const absl::Status failure = device().Synchronize();
  EXPECT_THAT(failure, StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("Embedding: id ")));
  std::istringstream message{std::string(failure.message())};
  std::string word;
  int64_t id = 0, position = 0;
  message >> word >> word >> id >> word >> word >> position;
  EXPECT_EQ(id, position + kMore) << failure;
  EXPECT_EQ(device().Synchronize(), failure);
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

// As many tokens as are sorted piece by piece, of which few or many have a row here, and one row
// many tokens.
TEST_P(EmbeddingTest, GradAddsUpManyTokensInTheirOrder) {
  for (const int64_t tokens : {1, 2, 1023, 1024, 1025, 2500, 9000}) {
    for (const auto& [rows, d] : {std::pair(ManyRuns(), 8), std::pair(SomeRows(), 3)}) {
      Doubles ids = RandomWhole(tokens, 0, 60, tokens);
      for (int64_t t = 0; t < tokens; t += 3) ids[t] = 5;
      const Tensor id = Make(DType::kI32, {tokens}, ids);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const Doubles dy = Rounded(dtype, RandomValues(tokens * d, -1, 1, 2));
        std::vector<float> sums(rows.size() * d, 0);
        for (int64_t t = 0; t < tokens; ++t) {
          const int64_t row = PositionOf(rows, ids[t]);
          for (int64_t i = 0; i < d && row >= 0; ++i) {
            sums[row * d + i] += static_cast<float>(dy[t * d + i]);
          }
        }
        EXPECT_EQ(RunGrad(id, Make(dtype, {tokens, d}, dy), rows),
                  Rounded(dtype, Doubles(sums.begin(), sums.end())))
            << tokens << " " << ToString(dtype);
      }
    }
  }
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
