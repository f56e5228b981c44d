#include "dtensor/runtime/core/attention_mask.h"

#include <random>
#include <string>
#include <vector>

#include "absl/hash/hash.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

AttentionMask Mask(absl::string_view text) { return AttentionMask::Parse(text).value(); }

// Blocks that one rank of P holds: contiguous, striped, zigzag.
IndexSet Striped(int64_t rank, int64_t ranks, int64_t count) {
  return IndexSet::FromIntervals({{rank, 1, ranks, count}});
}
IndexSet Zigzag(int64_t rank, int64_t ranks, int64_t chunk) {
  const int64_t late = 2 * ranks - 1 - rank;
  return IndexSet::Interval(rank * chunk, (rank + 1) * chunk)
      .Union(IndexSet::Interval(late * chunk, (late + 1) * chunk));
}

std::vector<int64_t> Positions(const IndexSet& set) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < set.size(); ++i) positions.push_back(set.At(i));
  return positions;
}

// The rules, as the header says them.
bool SaysTheHeader(const AttentionMask& mask, int64_t q, int64_t k) {
  switch (mask.kind()) {
    case AttentionMask::Kind::kFull:
      return true;
    case AttentionMask::Kind::kCausal:
      return k <= q;
    case AttentionMask::Kind::kWindow:
      return q - mask.width() + 1 <= k && k <= q;
    case AttentionMask::Kind::kPrefix:
      return k < mask.prefix() || k <= q;
    case AttentionMask::Kind::kDocuments:
      for (const int64_t start : mask.starts()) {
        if (k < start && start <= q) return false;
      }
      return k <= q;
  }
  return false;
}

// Count and Classify pair by pair.
int64_t CountPairs(const AttentionMask& mask, const IndexSet& q, const IndexSet& k) {
  int64_t pairs = 0;
  for (const int64_t i : Positions(q)) {
    for (const int64_t j : Positions(k)) pairs += SaysTheHeader(mask, i, j);
  }
  return pairs;
}
BlockCase ClassifyPairs(const AttentionMask& mask, const IndexSet& q, const IndexSet& k) {
  const int64_t pairs = CountPairs(mask, q, k);
  if (pairs == 0) return BlockCase::kEmpty;
  if (pairs == q.size() * k.size()) return BlockCase::kFull;
  if (q.size() != k.size()) return BlockCase::kPartial;
  for (int64_t i = 0; i < q.size(); ++i) {
    for (int64_t j = 0; j < k.size(); ++j) {
      if (SaysTheHeader(mask, q.At(i), k.At(j)) != (j <= i)) return BlockCase::kPartial;
    }
  }
  return BlockCase::kDiagonal;
}

const char* const kMasks[] = {
    "full",     "causal",    "window:1",    "window:7",           "window:40",           "prefix:0",
    "prefix:9", "prefix:33", "documents:0", "documents:0,5,6,20", "documents:0,17,31,32"};

TEST(AttentionMask, AllowsWhatTheHeaderSays) {
  for (const char* text : kMasks) {
    for (int64_t q = 0; q < 48; ++q) {
      for (int64_t k = 0; k < 48; ++k) {
        EXPECT_EQ(Mask(text).Allows(q, k), SaysTheHeader(Mask(text), q, k)) << text << q << k;
      }
    }
  }
}

TEST(AttentionMask, TheWindowEndsWhereItSays) {
  EXPECT_TRUE(Mask("window:3").Allows(10, 8));
  EXPECT_FALSE(Mask("window:3").Allows(10, 7));
  EXPECT_FALSE(Mask("window:3").Allows(10, 11));
  EXPECT_EQ(Mask("window:3").KeysOf(1), (KeyRange{0, 2}));
  EXPECT_EQ(Mask("documents:0,4").KeysOf(6), (KeyRange{4, 7}));
  EXPECT_EQ(Mask("prefix:8").KeysOf(3), (KeyRange{0, 8}));
}

// Sets of up to three runs, below 64, that may have any strides.
IndexSet RandomSet(std::mt19937& random) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::vector<IndexRun> runs;
  int64_t begin = draw(0, 12);
  for (int64_t i = draw(0, 3); i > 0; --i) {
    const int64_t length = draw(1, 5), stride = length + draw(1, 6), count = draw(1, 5);
    runs.push_back({begin, length, count > 1 ? stride : 0, count});
    begin = runs.back().end() + draw(1, 8);
  }
  return IndexSet::FromIntervals(runs);
}

TEST(AttentionMask, CountsAndClassifiesAsPairByPair) {
  std::mt19937 random(20261121);
  for (int round = 0; round < 400; ++round) {
    const IndexSet q = RandomSet(random), k = round % 5 == 0 ? q : RandomSet(random);
    for (const char* text : kMasks) {
      const AttentionMask mask = Mask(text);
      ASSERT_EQ(mask.Count(q, k), CountPairs(mask, q, k)) << text << q.ToString() << k.ToString();
      const BlockCase expected = ClassifyPairs(mask, q, k), got = mask.Classify(q, k);
      // Runs cut in unlike ways may hide a diagonal; nothing else is missed.
      if (expected == BlockCase::kDiagonal && got == BlockCase::kPartial && !(q == k)) continue;
      ASSERT_EQ(got, expected) << text << q.ToString() << k.ToString();
    }
  }
}

TEST(AttentionMask, CountsTheOrdersOfARing) {
  for (int64_t ranks = 1; ranks <= 5; ++ranks) {
    for (int64_t q = 0; q < ranks; ++q) {
      for (int64_t k = 0; k < ranks; ++k) {
        for (const char* text : kMasks) {
          const AttentionMask mask = Mask(text);
          for (const auto& [a, b] : {std::pair(Striped(q, ranks, 9), Striped(k, ranks, 9)),
                                     std::pair(Zigzag(q, ranks, 4), Zigzag(k, ranks, 4)),
                                     std::pair(Zigzag(q, ranks, 4), Striped(k, ranks, 8))}) {
            EXPECT_EQ(mask.Count(a, b), CountPairs(mask, a, b));
            EXPECT_EQ(mask.Classify(a, b), ClassifyPairs(mask, a, b))
                << text << a.ToString() << b.ToString();
          }
        }
      }
    }
  }
}

TEST(AttentionMask, CausalZigzagAndStripedBlocks) {
  const AttentionMask mask = AttentionMask::Causal();
  EXPECT_EQ(mask.Classify(Zigzag(1, 4, 8), Zigzag(1, 4, 8)), BlockCase::kDiagonal);
  EXPECT_EQ(mask.Classify(Zigzag(1, 4, 8), Zigzag(0, 4, 8)), BlockCase::kPartial);
  EXPECT_EQ(mask.Count(Zigzag(1, 4, 8), Zigzag(0, 4, 8)), 16 * 8);  // all queries, early keys
  EXPECT_EQ(mask.Count(Zigzag(1, 4, 8), Zigzag(2, 4, 8)), 8 * 16);  // late queries, all keys
  EXPECT_EQ(mask.Classify(Striped(2, 4, 8), Striped(1, 4, 8)), BlockCase::kDiagonal);
  EXPECT_EQ(mask.Classify(Striped(1, 4, 8), Striped(2, 4, 8)), BlockCase::kPartial);
  EXPECT_EQ(mask.Count(Striped(1, 4, 8), Striped(2, 4, 8)), 8 * 7 / 2);
}

TEST(AttentionMask, CountsABillionPositionsByRuns) {
  const int64_t n = int64_t{1} << 30;
  const AttentionMask causal = AttentionMask::Causal();
  EXPECT_EQ(causal.Count(Striped(1, 2, n), Striped(0, 2, n)), n * (n + 1) / 2);
  EXPECT_EQ(causal.Count(IndexSet::Interval(0, n), Striped(0, 2, n / 2)), n / 2 * (n / 2 + 1));
  EXPECT_EQ(Mask("window:4").Count(Striped(1, 2, n), Striped(0, 2, n)), 2 * n - 1);
}

TEST(AttentionMask, NothingSeesNothing) {
  for (const char* text : kMasks) {
    EXPECT_EQ(Mask(text).Count(IndexSet(), IndexSet::Interval(0, 4)), 0);
    EXPECT_EQ(Mask(text).Classify(IndexSet::Interval(0, 4), IndexSet()), BlockCase::kEmpty);
  }
}

TEST(AttentionMask, TextRoundTrips) {
  for (const char* text : kMasks) {
    EXPECT_EQ(Mask(text).ToString(), text);
    for (const char* other : kMasks) {
      const bool same = text == other;
      EXPECT_EQ(Mask(text) == Mask(other), same) << text << " and " << other;
      EXPECT_EQ(absl::HashOf(Mask(text)) == absl::HashOf(Mask(other)), same);
    }
  }
}

TEST(AttentionMask, RefusesWithTheRemedy) {
  for (const char* text : {"", "Causal", "window", "window:", "window:x", "window:1,2", "prefix:a",
                           "documents:", "documents:0,,4", "causal:1"}) {
    EXPECT_THAT(AttentionMask::Parse(text), StatusIs(kInvalid, HasSubstr("window:W"))) << text;
  }
  EXPECT_THAT(AttentionMask::Window(0), StatusIs(kInvalid, HasSubstr("1 or more")));
  EXPECT_THAT(AttentionMask::Prefix(-1), StatusIs(kInvalid, HasSubstr("0 or more")));
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{}, {1}, {0, 4, 4}, {0, 9, 4}}) {
    EXPECT_THAT(AttentionMask::Documents(starts), StatusIs(kInvalid, HasSubstr("starts at 0")));
  }
}

TEST(AttentionMask, AWindowLongerThanTheSequenceIsCausal) {
  std::mt19937 random(31);
  for (const char* text : {"window:128", "window:4096", "window:9223372036854775807"}) {
    const AttentionMask window = Mask(text), causal = AttentionMask::Causal();
    EXPECT_THAT(window.CheckFits(100), IsOk());
    for (int round = 0; round < 50; ++round) {
      const IndexSet q = RandomSet(random), k = round % 5 == 0 ? q : RandomSet(random);
      EXPECT_EQ(window.Count(q, k), causal.Count(q, k)) << text << q.ToString() << k.ToString();
      EXPECT_EQ(window.Classify(q, k), causal.Classify(q, k)) << text;
    }
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(window.KeysOf(i), causal.KeysOf(i)) << text;
  }
}

TEST(AttentionMask, FitsASequence) {
  for (const char* text : {"full", "causal", "window:8", "prefix:8", "documents:0,7"}) {
    EXPECT_TRUE(Mask(text).CheckFits(8).ok()) << text;
  }
  EXPECT_TRUE(Mask("documents:0").CheckFits(0).ok());
  EXPECT_TRUE(Mask("window:9223372036854775807").CheckFits(0).ok());
  EXPECT_THAT(Mask("prefix:9").CheckFits(8), StatusIs(kInvalid, HasSubstr("or full")));
  EXPECT_THAT(Mask("documents:0,8").CheckFits(8), StatusIs(kInvalid, HasSubstr("8 positions")));
}

}  // namespace
}  // namespace dtensor
