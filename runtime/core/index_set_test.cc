#include "dtensor/runtime/core/index_set.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Counts what the operations below take from the heap.
thread_local int64_t heap_allocations = 0;

void* operator new(size_t size) {
  ++heap_allocations;
  if (void* memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace dtensor {

void PrintTo(const IndexSet& set, std::ostream* out) { *out << set.ToString(); }
void PrintTo(const MatchedRun& p, std::ostream* out) {
  *out << absl::StrCat("{", p.src, ", ", p.dst, ", ", p.length, ", ", p.count, ", ", p.src_stride,
                       ", ", p.dst_stride, "}");
}

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Indices = std::set<int64_t>;

IndexSet Of(std::vector<IndexRun> runs) { return IndexSet::FromIntervals(runs); }

Indices IndicesOf(absl::Span<const IndexRun> runs) {
  Indices indices;
  for (const IndexRun& run : runs) {
    for (int64_t j = 0; j < run.count; ++j) {
      for (int64_t i = 0; i < run.length; ++i) indices.insert(run.begin + j * run.stride + i);
    }
  }
  return indices;
}
Indices IndicesOf(const IndexSet& set) { return IndicesOf(set.runs()); }

// The canonical form as the header defines it, by brute force.
std::vector<IndexRun> CanonicalRuns(const Indices& indices) {
  std::vector<IndexRun> intervals;
  for (int64_t index : indices) {
    if (intervals.empty() || intervals.back().end() != index) intervals.push_back({index, 0});
    ++intervals.back().length;
  }
  std::vector<IndexRun> runs;
  for (size_t i = 0; i < intervals.size();) {
    IndexRun run = intervals[i++];
    for (; i < intervals.size() && intervals[i].length == run.length; ++i) {
      const int64_t step = intervals[i].begin - intervals[i - 1].begin;
      if (run.count > 1 && step != run.stride) break;
      run.stride = step;
      ++run.count;
    }
    runs.push_back(run);
  }
  return runs;
}

IndexSet SetOf(const Indices& indices) {
  std::vector<IndexRun> ones;
  for (int64_t index : indices) ones.push_back({.begin = index, .length = 1});
  return IndexSet::FromIntervals(ones);
}

// (position in src, position in dst) of each common index, in the order of the pieces' definition.
using Positions = std::vector<std::pair<int64_t, int64_t>>;
Positions PositionsOf(const std::vector<MatchedRun>& pieces) {
  Positions positions;
  for (const MatchedRun& p : pieces) {
    for (int64_t j = 0; j < p.count; ++j) {
      for (int64_t i = 0; i < p.length; ++i) {
        positions.push_back({p.src + j * p.src_stride + i, p.dst + j * p.dst_stride + i});
      }
    }
  }
  return positions;
}

Positions CommonPositions(const Indices& src, const Indices& dst) {
  Positions positions;
  for (int64_t index : src) {
    const auto at = dst.find(index);
    if (at == dst.end()) continue;
    positions.push_back(
        {std::distance(src.begin(), src.find(index)), std::distance(dst.begin(), at)});
  }
  return positions;
}

TEST(IndexSet, Empty) {
  for (const IndexSet& set : {IndexSet(), IndexSet::Interval(3, 3), IndexSet::Interval(3, 2),
                              Of({}), Of({{5, 0}, {7, 2, 4, 0}})}) {
    EXPECT_TRUE(set.empty());
    EXPECT_EQ(set.size(), 0);
    EXPECT_EQ(set, IndexSet());
    EXPECT_EQ(set.ToString(), "{}");
    EXPECT_FALSE(set.Contains(0));
    EXPECT_TRUE(set.Slice(0, 0).empty());
  }
}

TEST(IndexSet, CanonicalFormOfTheHeadersExamples) {
  const auto text = [](const Indices& indices) { return SetOf(indices).ToString(); };
  EXPECT_EQ(text({3, 4, 5}), "{3..5}");
  EXPECT_EQ(text({0, 1, 6, 7}), "{0..1 +6 x2}");
  EXPECT_EQ(text({0, 1, 6, 7, 12, 13, 20}), "{0..1 +6 x3, 20}");
  EXPECT_EQ(text({0, 5, 15, 25}), "{0 +5 x2, 15 +10 x2}");
  EXPECT_EQ(text({0, 1, 3, 6, 7, 9}), "{0..1, 3, 6..7, 9}");
}

TEST(IndexSet, JoinsWhatTouches) {
  EXPECT_EQ(Of({{0, 2}, {2, 3}}), IndexSet::Interval(0, 5));
  EXPECT_EQ(Of({{0, 2, 2, 4}}), IndexSet::Interval(0, 8));
  EXPECT_EQ(Of({{0, 2, 6, 3}, {14, 2}}).ToString(), "{0..1 +6 x2, 12..15}");
  // The joined interval goes on as the ones before it do, and so does what follows.
  EXPECT_EQ(Of({{0, 4}, {10, 2}, {12, 2}, {20, 4, 10, 2}}).ToString(), "{0..3 +10 x4}");
  // The strided run gives its first interval away and its others start a run.
  EXPECT_EQ(Of({{0, 3}, {3, 1, 4, 3}}).ToString(), "{0..3, 7 +4 x2}");
  // One more of the same, then another distance.
  EXPECT_EQ(Of({{0, 1, 3, 2}, {6, 1, 5, 3}}).ToString(), "{0 +3 x3, 11 +5 x2}");
}

TEST(IndexSetDeathTest, RefusesRunsOutOfOrder) {
  EXPECT_DEATH(Of({{5, 2}, {0, 2}}), "index_set.cc");
  EXPECT_DEATH(Of({{0, 2}, {1, 2}}), "index_set.cc");
  EXPECT_DEATH(Of({{0, 4, 3, 2}}), "index_set.cc");
  EXPECT_DEATH(IndexSet::Interval(0, 4).At(4), "index_set.cc");
  EXPECT_DEATH(IndexSet::Interval(0, 4).At(-1), "index_set.cc");
  EXPECT_DEATH(IndexSet::Interval(0, 4).Slice(1, 5), "index_set.cc");
  EXPECT_DEATH(IndexSet::Interval(0, 4).Slice(2, 1), "index_set.cc");
}

TEST(Match, EqualSetsAreOnePiece) {
  for (const IndexSet& set : {IndexSet::Interval(7, 20), Of({{3, 2, 5, 1000000}}),
                              Of({{0, 2, 6, 3}, {20, 7}, {40, 1, 2, 5}})}) {
    EXPECT_THAT(MatchIndexSets(set, set), ElementsAre(MatchedRun{.length = set.size()}));
  }
  EXPECT_THAT(MatchIndexSets(IndexSet(), IndexSet()), IsEmpty());
  EXPECT_THAT(MatchIndexSets(IndexSet::Interval(0, 4), IndexSet::Interval(4, 8)), IsEmpty());
}

TEST(Match, IntervalsAndStripes) {
  EXPECT_THAT(MatchIndexSets(IndexSet::Interval(0, 6), IndexSet::Interval(4, 12)),
              ElementsAre(MatchedRun{.src = 4, .dst = 0, .length = 2}));
  // Every fourth element of a whole dimension.
  EXPECT_THAT(MatchIndexSets(IndexSet::Interval(0, 4000), Of({{1, 1, 4, 1000}})),
              ElementsAre(MatchedRun{1, 0, 1, 1000, 4, 1}));
  // Cut at both ends.
  EXPECT_THAT(
      MatchIndexSets(Of({{0, 3, 10, 5}}), IndexSet::Interval(1, 42)),
      ElementsAre(MatchedRun{1, 0, 2}, MatchedRun{3, 9, 3, 3, 3, 10}, MatchedRun{12, 39, 2}));
}

TEST(Match, EqualStridesMayInterleave) {
  EXPECT_THAT(MatchIndexSets(Of({{0, 4, 6, 9}}), Of({{2, 5, 6, 9}})),
              ElementsAre(MatchedRun{2, 0, 2, 9, 4, 5}, MatchedRun{4, 4, 1, 8, 4, 5}));
}

// The bounds of the header, on sets of a million intervals: a walk over them would give a million
// pieces here (and with one for each period instead, half a million).
TEST(Match, PiecesDoNotGrowWithTheSize) {
  const int64_t n = 1 << 20;
  const auto stripes = [&](int64_t rank, int64_t block, int64_t ranks) {
    return Of({{rank * block, block, block * ranks, n / (block * ranks)}});
  };
  EXPECT_THAT(MatchIndexSets(stripes(0, 1, 2), stripes(2, 1, 4)),
              ElementsAre(MatchedRun{1, 0, 1, n / 4, 2, 1}));
  EXPECT_THAT(MatchIndexSets(stripes(1, 4, 2), stripes(3, 2, 4)),
              ElementsAre(MatchedRun{2, 0, 2, n / 8, 4, 2}));
  EXPECT_THAT(MatchIndexSets(stripes(0, 3, 5), stripes(1, 2, 7)), SizeIs(testing::Le(10)));
  EXPECT_THAT(MatchIndexSets(stripes(0, 1024, 4), stripes(1, 1, 4)), SizeIs(testing::Le(256)));
}

TEST(IndexSet, OperationsOnHugeSetsStayStrided) {
  const int64_t n = int64_t{1} << 50;
  const IndexSet even = Of({{0, 1, 2, n}}), odd = Of({{1, 1, 2, n}});
  const IndexSet fours = Of({{0, 1, 4, n / 2}});
  EXPECT_EQ(even.Union(odd), IndexSet::Interval(0, 2 * n));
  EXPECT_TRUE(even.Intersect(odd).empty());
  EXPECT_EQ(even.Intersect(fours), fours);
  EXPECT_EQ(even.Union(fours), even);
  EXPECT_EQ(even.Intersect(Of({{0, 3, 4, n / 2}})), even);
  EXPECT_EQ(even.Slice(1, n - 1), Of({{2, 1, 2, n - 2}}));
  EXPECT_EQ(even.At(n - 1), 2 * n - 2);
  EXPECT_TRUE(odd.Contains(2 * n - 1));
  EXPECT_FALSE(odd.Contains(2 * n - 2));
}

// Here a walk over the intervals of the finer set, or over a period, would not end.
TEST(Match, FewIntervalsAgainstVeryMany) {
  const int64_t n = int64_t{1} << 50;
  const IndexSet few = Of({{6, 6, n + 1, 3}}), many = Of({{0, 1, 3, n}});
  const std::vector<MatchedRun> pieces = MatchIndexSets(few, many);
  ASSERT_THAT(pieces, SizeIs(testing::Le(9)));
  EXPECT_THAT(PositionsOf(pieces), SizeIs(6));
  EXPECT_EQ(few.Intersect(many).size(), 6);
  EXPECT_THAT(PositionsOf(MatchIndexSets(many, few)), SizeIs(6));
}

TEST(IndexSet, UpToTwoRunsNeedNoHeap) {
  const IndexSet zigzag = Of({{0, 2, 14, 2}}), blocks = Of({{2, 3, 6, 4}, {26, 1}});
  const int64_t before = heap_allocations;
  const IndexSet interval = IndexSet::Interval(1, 20);
  const IndexSet copy = blocks;
  for (const IndexSet* a : {&zigzag, &copy, &interval}) {
    EXPECT_LE(a->Slice(1, 4).runs().size(), 2);
    EXPECT_LE(a->Intersect(zigzag).runs().size(), 2);
    EXPECT_LE(a->Union(interval).runs().size(), 2);
  }
  EXPECT_EQ(heap_allocations, before);
  const std::vector<MatchedRun> pieces = MatchIndexSets(interval, copy);
  EXPECT_EQ(heap_allocations, before + 1);  // the result
  EXPECT_THAT(pieces, SizeIs(1));
  const IndexSet stripes = Of({{0, 3, 10, 5}}), cut = IndexSet::Interval(1, 42);
  const int64_t before_three = heap_allocations;
  const std::vector<MatchedRun> three = MatchIndexSets(stripes, cut);
  EXPECT_EQ(heap_allocations, before_three + 1);
  EXPECT_THAT(three, SizeIs(3));
}

// Random sets: what layouts give (intervals, stripes, zigzag) and anything else.
class Random {
 public:
  int64_t Int(int64_t low, int64_t high) { return random_.In(low, high); }

  Indices Set() {
    switch (Int(0, 3)) {
      case 0:
        return IndicesOf(IndexSet::Interval(Int(-5, 30), Int(0, 60)));
      case 1:
        return IndicesOf({StridedRun(Int(-5, 30))});
      case 2: {
        Indices indices;
        int64_t begin = Int(-5, 10);
        for (int64_t runs = Int(0, 4); runs > 0; --runs) {
          const IndexRun run = StridedRun(begin);
          indices.merge(IndicesOf({run}));
          begin = run.end() + Int(0, 5);
        }
        return indices;
      }
      default: {
        Indices indices;
        const int64_t percent = Int(0, 100);
        for (int64_t index = Int(-5, 20); index < 50; ++index) {
          if (Int(0, 99) < percent) indices.insert(index);
        }
        return indices;
      }
    }
  }

 private:
  IndexRun StridedRun(int64_t begin) {
    const int64_t length = Int(1, 6);
    return {begin, length, length + Int(0, 8), Int(1, 20)};
  }

  TestRandom random_;
};

// The parts are disjoint, none is empty, and together they are `common`.
void ExpectParts(const IndexSet& a, const IndexSet& b, const Indices& common) {
  Indices all;
  size_t size = 0;
  for (const IndexSet& part : a.IntersectInParts(b)) {
    EXPECT_FALSE(part.empty());
    EXPECT_THAT(part.runs(), testing::ElementsAreArray(CanonicalRuns(IndicesOf(part))));
    size += part.size();
    all.merge(IndicesOf(part));
  }
  EXPECT_EQ(all, common);
  EXPECT_EQ(size, common.size());
  EXPECT_EQ(a.CommonSize(b), static_cast<int64_t>(common.size()));
}

class IndexSetPropertyTest : public testing::Test {
 protected:
  static constexpr int kRounds = 3000;
  Random random_;
};

TEST_F(IndexSetPropertyTest, FromIntervalsIsCanonicalHoweverTheSetIsCut) {
  for (int round = 0; round < kRounds; ++round) {
    const Indices indices = random_.Set();
    const std::vector<IndexRun> canonical = CanonicalRuns(indices);
    ASSERT_THAT(SetOf(indices).runs(), testing::ElementsAreArray(canonical));
    // The same set, its runs cut at random places: in intervals, and inside of them.
    std::vector<IndexRun> cut;
    for (IndexRun run : canonical) {
      const int64_t first = random_.Int(0, run.count - 1), offset = random_.Int(0, run.length);
      const int64_t begin = run.begin + first * run.stride;
      cut.push_back({run.begin, run.length, run.stride, first});
      cut.push_back({begin, offset});
      cut.push_back({begin + offset, run.length - offset});
      cut.push_back({begin + run.stride, run.length, run.stride, run.count - 1 - first});
    }
    ASSERT_THAT(Of(cut).runs(), testing::ElementsAreArray(canonical));
  }
}

TEST_F(IndexSetPropertyTest, PositionsAndSlices) {
  for (int round = 0; round < kRounds; ++round) {
    const Indices indices = random_.Set();
    const IndexSet set = SetOf(indices);
    const std::vector<int64_t> sorted(indices.begin(), indices.end());
    const int64_t size = sorted.size();
    ASSERT_EQ(set.size(), size);
    ASSERT_EQ(set.empty(), size == 0);
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(set.At(i), sorted[i]) << set.ToString();
    for (int64_t index = -10; index < 300; ++index) {
      ASSERT_EQ(set.Contains(index), indices.contains(index)) << set.ToString() << " " << index;
    }
    const int64_t begin = random_.Int(0, size), end = random_.Int(begin, size);
    const Indices slice(sorted.begin() + begin, sorted.begin() + end);
    ASSERT_THAT(set.Slice(begin, end).runs(), testing::ElementsAreArray(CanonicalRuns(slice)))
        << set.ToString() << " from " << begin << " to " << end;
    const int64_t offset = random_.Int(-1000, 1000);
    Indices moved;
    for (const int64_t index : sorted) moved.insert(index + offset);
    ASSERT_EQ(set.Shifted(offset), SetOf(moved)) << set.ToString() << " by " << offset;
  }
}

TEST_F(IndexSetPropertyTest, IntersectAndUnion) {
  for (int round = 0; round < kRounds; ++round) {
    const Indices a = random_.Set(), b = random_.Set();
    Indices common, joined;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(),
                          std::inserter(common, common.end()));
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::inserter(joined, joined.end()));
    const IndexSet set_a = SetOf(a), set_b = SetOf(b);
    SCOPED_TRACE(absl::StrCat(set_a.ToString(), " and ", set_b.ToString()));
    ASSERT_THAT(set_a.Intersect(set_b).runs(), testing::ElementsAreArray(CanonicalRuns(common)));
    ASSERT_THAT(set_a.Union(set_b).runs(), testing::ElementsAreArray(CanonicalRuns(joined)));
    ExpectParts(set_a, set_b, common);
    ASSERT_EQ(set_a == set_b, a == b);
  }
}

TEST_F(IndexSetPropertyTest, MatchGivesEachCommonIndexOnce) {
  for (int round = 0; round < kRounds; ++round) {
    const Indices src = random_.Set(), dst = random_.Set();
    const IndexSet src_set = SetOf(src), dst_set = SetOf(dst);
    SCOPED_TRACE(absl::StrCat(src_set.ToString(), " and ", dst_set.ToString()));
    const std::vector<MatchedRun> pieces = MatchIndexSets(src_set, dst_set);
    Positions positions = PositionsOf(pieces);
    std::sort(positions.begin(), positions.end());
    ASSERT_EQ(positions, CommonPositions(src, dst));
    for (size_t i = 0; i < pieces.size(); ++i) {
      const MatchedRun& p = pieces[i];
      ASSERT_EQ(p.count == 1, p.src_stride == 0 && p.dst_stride == 0);
      ASSERT_TRUE(i == 0 || (pieces[i - 1].src < p.src && pieces[i - 1].dst < p.dst));
    }
    std::vector<MatchedRun> swapped = MatchIndexSets(dst_set, src_set);
    for (MatchedRun& p : swapped) {
      std::swap(p.src, p.dst);
      std::swap(p.src_stride, p.dst_stride);
    }
    ASSERT_EQ(pieces, swapped);
  }
}

TEST(IndexSetTest, PartsOfUnequalStridesDoNotGrow) {
  // Blocks of 3 and of 7, dealt to four: 12 and 28 apart, which meet in a pattern of 84.
  for (const int64_t periods : {int64_t{10}, int64_t{10'000'000'000}}) {
    const IndexSet threes = Of({{0, 3, 12, 7 * periods}}), sevens = Of({{0, 7, 28, 3 * periods}});
    EXPECT_EQ(threes.IntersectInParts(sevens).size(), 2) << periods;
    EXPECT_EQ(threes.CommonSize(sevens), 6 * periods);
  }
  EXPECT_THAT(Of({{0, 2, 4, 9}}).IntersectInParts(Of({{2, 2, 4, 9}})), testing::IsEmpty());
}

// Each pair of strided runs of small numbers: periods, cut ends, one interval against many.
TEST(IndexSetExhaustive, PairsOfRuns) {
  for (int64_t stride_a = 2; stride_a <= 6; ++stride_a) {
    for (int64_t stride_b = 2; stride_b <= 6; ++stride_b) {
      for (int64_t shape = 0; shape < 4 * 4 * 3 * 3 * 7; ++shape) {
        const int64_t length_a = 1 + shape % 4, length_b = 1 + shape / 4 % 4;
        if (length_a >= stride_a || length_b >= stride_b) continue;
        const int64_t counts[] = {1, 4, 15};
        const IndexRun a = {0, length_a, stride_a, counts[shape / 16 % 3]};
        const IndexRun b = {shape / 144 - 1, length_b, stride_b, counts[shape / 48 % 3]};
        const Indices in_a = IndicesOf({a}), in_b = IndicesOf({b});
        const IndexSet set_a = Of({a}), set_b = Of({b});
        SCOPED_TRACE(absl::StrCat(set_a.ToString(), " and ", set_b.ToString()));
        Positions positions = PositionsOf(MatchIndexSets(set_a, set_b));
        std::sort(positions.begin(), positions.end());
        ASSERT_EQ(positions, CommonPositions(in_a, in_b));
        Indices common, joined = in_a;
        std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                              std::inserter(common, common.end()));
        joined.insert(in_b.begin(), in_b.end());
        ASSERT_THAT(set_a.Intersect(set_b).runs(),
                    testing::ElementsAreArray(CanonicalRuns(common)));
        ASSERT_THAT(set_a.Union(set_b).runs(), testing::ElementsAreArray(CanonicalRuns(joined)));
        ExpectParts(set_a, set_b, common);
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
