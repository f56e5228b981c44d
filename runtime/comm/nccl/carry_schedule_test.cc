#include "dtensor/runtime/comm/nccl/carry_schedule.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Boxes final : public ExchangeBoxes {
 public:
  using Table = std::map<std::pair<size_t, int>, std::vector<ReceiveBox>>;  // by part and rank
  explicit Boxes(Table boxes) : boxes_(std::move(boxes)) {}
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    const auto found = boxes_.find({part, rank});
    return found == boxes_.end() ? std::vector<ReceiveBox>() : found->second;
  }
  uint64_t digest() const override { return 1; }

 private:
  const Table boxes_;
};

// n elements of `peers`, from `src` to `dst`.
ReceiveBox Piece(std::vector<int> peers, int64_t src, int64_t dst, int64_t n) {
  ReceiveBox box;
  box.peers.assign(peers.begin(), peers.end());
  box.dims = {{.src = src, .dst = dst, .length = n}};
  return box;
}

std::vector<CarrySchedule> OfAll(const Collective& collective, std::vector<int64_t> sizes,
                                 int64_t round_bytes) {
  std::vector<CarrySchedule> all;
  for (const int rank : collective.group) {
    all.push_back(ScheduleOf(collective, sizes, rank, round_bytes));
  }
  return all;
}

// Of each pair, the messages of both sides, in bytes.
void ExpectThatPairsAgree(const std::vector<int>& group, const std::vector<CarrySchedule>& all,
                          int64_t round_bytes) {
  using Messages = std::vector<std::vector<int64_t>>;  // [round][piece]
  for (size_t to = 0; to < group.size(); ++to) {
    for (size_t from = 0; from < group.size(); ++from) {
      if (from == to) continue;
      Messages sent, received;
      for (const CarriedRound& round : all[from].rounds) {
        sent.emplace_back();
        const auto found = round.sends.find(group[to]);
        if (found == round.sends.end()) continue;
        for (const CarriedPiece& piece : found->second) sent.back().push_back(piece.bytes);
      }
      for (const CarriedRound& round : all[to].rounds) {
        received.emplace_back();
        int64_t bytes = 0;
        for (const CarriedPiece& piece : round.receives) {
          const auto times = std::count(piece.peers.begin(), piece.peers.end(), group[from]);
          received.back().insert(received.back().end(), times, piece.bytes);
          bytes += piece.bytes * static_cast<int64_t>(piece.peers.size());
        }
        EXPECT_LE(bytes, round_bytes);
      }
      const size_t rounds = std::max(sent.size(), received.size());
      sent.resize(rounds);
      received.resize(rounds);
      EXPECT_EQ(sent, received) << group[from] << " to " << group[to];
    }
  }
}

TEST(CarrySchedule, WhatFitsGoesInOneRound) {
  const std::vector<int> group = {3, 5};
  const Boxes boxes(
      {{{0, 3}, {Piece({5}, 0, 4, 4)}}, {{0, 5}, {Piece({3}, 0, 0, 4), Piece({5}, 0, 4, 4)}}});
  const Collective collective = {.group = group, .boxes = &boxes};
  const auto all = OfAll(collective, {4}, 1000);
  ExpectThatPairsAgree(group, all, 1000);
  EXPECT_THAT(all[0].rounds, SizeIs(1));
  EXPECT_EQ(all[0].messages, 1);
  EXPECT_THAT(all[0].own, IsEmpty());
  EXPECT_THAT(all[1].own, SizeIs(1));
  EXPECT_THAT(all[1].rounds[0].receives, SizeIs(1));
}

TEST(CarrySchedule, WideElementsGoFirst) {
  const std::vector<int> group = {0, 1};
  const Boxes boxes({{{0, 0}, {Piece({1}, 0, 0, 3)}}, {{1, 0}, {Piece({1}, 0, 0, 3)}}});
  const Collective collective = {.group = group, .boxes = &boxes};
  const auto all = OfAll(collective, {1, 8}, 1000);
  ASSERT_THAT(all[1].rounds, SizeIs(1));
  const auto& sent = all[1].rounds[0].sends.at(0);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].part, 1);
  EXPECT_EQ(sent[1].part, 0);
}

TEST(CarrySchedule, TermsOfARoundFitIn) {
  const std::vector<int> group = {0, 1, 2, 3};
  Boxes::Table table;
  for (const int rank : group) table[{0, rank}] = {Piece({3, 1, 0, 2}, rank * 10, 0, 10)};
  const Boxes boxes(std::move(table));
  const Collective collective = {.group = group, .boxes = &boxes};
  // Four terms of 2 elements.
  const auto all = OfAll(collective, {4}, 39);
  ExpectThatPairsAgree(group, all, 39);
  for (const CarrySchedule& one : all) {
    EXPECT_THAT(one.rounds, SizeIs(5));
    EXPECT_EQ(one.messages, 3);
    for (const CarriedRound& round : one.rounds) {
      EXPECT_THAT(round.receives[0].peers, ElementsAre(3, 1, 0, 2));
    }
  }
}

TEST(CarrySchedule, RandomBoxesOfRandomGroups) {
  TestRandom random(5);
  for (int times = 0; times < 300; ++times) {
    const auto ranks = static_cast<int>(random.In(2, 5));
    std::vector<int> group;
    for (int i = 0; i < ranks; ++i) group.push_back(2 * i + 1);
    const auto parts = static_cast<size_t>(random.In(1, 3));
    std::vector<int64_t> sizes;
    Boxes::Table table;
    for (size_t part = 0; part < parts; ++part) {
      sizes.push_back(int64_t{1} << random.In(0, 3));
      for (const int rank : group) {
        for (int64_t i = random.In(0, 3); i > 0; --i) {
          std::vector<int> peers;
          for (int64_t k = random.In(1, ranks); k > 0; --k) {
            peers.push_back(group[random.In(0, ranks - 1)]);
          }
          table[{part, rank}].push_back(
              box_testing::RandomReceiveBox(random, static_cast<int>(random.In(1, 3)), peers));
        }
      }
    }
    const Boxes boxes(std::move(table));
    const Collective collective = {.group = group, .boxes = &boxes};
    const int64_t round_bytes = random.In(8 * ranks, 400);
    ExpectThatPairsAgree(group, OfAll(collective, sizes, round_bytes), round_bytes);
  }
}

// --- Native all-gathers.

Boxes::Table Gather(const std::vector<int>& group, int64_t n) {
  Boxes::Table table;
  for (const int rank : group) {
    for (size_t i = 0; i < group.size(); ++i) {
      table[{0, rank}].push_back(Piece({group[i]}, 0, static_cast<int64_t>(i) * n, n));
    }
  }
  return table;
}

TEST(CarrySchedule, ANativeAllGatherIsOne) {
  const std::vector<int> group = {1, 2, 4};
  const Boxes boxes(Gather(group, 5));
  Collective collective = {
      .kind = CollectiveKind::kAllGather, .native = true, .group = group, .boxes = &boxes};
  for (const CarrySchedule& one : OfAll(collective, {2}, 100)) {
    EXPECT_THAT(one.rounds, IsEmpty());
    ASSERT_THAT(one.collectives, SizeIs(1));
    EXPECT_FALSE(one.collectives[0].reduces);
    EXPECT_TRUE(one.collectives[0].gathers_own);
    EXPECT_THAT(one.collectives[0].boxes, SizeIs(3));
    EXPECT_THAT(one.own, SizeIs(1));
    EXPECT_EQ(one.messages, 2);
  }
  collective.native = false;
  for (const CarrySchedule& one : OfAll(collective, {2}, 100))
    EXPECT_THAT(one.collectives, IsEmpty());
}

// As behind a reduce-scatter, where each rank's own lies in the result already.
TEST(CarrySchedule, AGatherMayLackItsOwn) {
  const std::vector<int> group = {0, 1};
  Boxes::Table table;
  for (const int rank : group)
    table[{0, rank}] = {Piece({1 - rank}, 3 - 3 * rank, 3 - 3 * rank, 3)};
  const Boxes boxes(std::move(table));
  const Collective collective = {
      .kind = CollectiveKind::kAllGather, .native = true, .group = group, .boxes = &boxes};
  const auto all = OfAll(collective, {4}, 100);
  for (const int rank : group) {
    ASSERT_THAT(all[rank].collectives, SizeIs(1));
    const CarriedCollective& gather = all[rank].collectives[0];
    EXPECT_FALSE(gather.gathers_own);
    EXPECT_EQ(gather.boxes.at(rank)[0].src, 3 * rank);
    EXPECT_EQ(gather.boxes.at(1 - rank)[0].dst, 3 - 3 * rank);
  }
}

// What a plan calls native and NCCL cannot do goes by sends, on all ranks.
TEST(CarrySchedule, AnotherPatternIsNoGather) {
  const std::vector<int> group = {0, 1, 2};
  std::vector<Boxes::Table> tables(4, Gather(group, 4));
  tables[0][{0, 2}].erase(tables[0][{0, 2}].begin());  // one rank receives less
  tables[1][{0, 1}][2] = Piece({2}, 1, 8, 4);          // other elements
  tables[2][{0, 1}][2] = Piece({2}, 0, 8, 3);          // fewer
  tables[3][{0, 0}][1] = Piece({1, 2}, 0, 4, 4);       // a sum
  for (Boxes::Table& table : tables) {
    const Boxes boxes(std::move(table));
    const Collective collective = {
        .kind = CollectiveKind::kAllGather, .native = true, .group = group, .boxes = &boxes};
    const auto all = OfAll(collective, {4}, 1000);
    for (const CarrySchedule& one : all) EXPECT_THAT(one.collectives, IsEmpty());
    ExpectThatPairsAgree(group, all, 1000);
  }
}

// --- Native reductions.

Boxes::Table Reduction(const std::vector<int>& group, int64_t n) {
  Boxes::Table table;
  for (size_t i = 0; i < group.size(); ++i) {
    table[{0, group[i]}] = {Piece(group, static_cast<int64_t>(i) * n, 0, n)};
  }
  return table;
}

Collective AnyOrder(const std::vector<int>& group, const Boxes& boxes) {
  return {.kind = CollectiveKind::kReduceScatter,
          .native = true,
          .sums_in_any_order = true,
          .group = group,
          .boxes = &boxes};
}

TEST(CarrySchedule, SumsInAnyOrderAreOneReduction) {
  const std::vector<int> group = {1, 2, 4};
  Boxes::Table table = Reduction(group, 5);
  std::reverse(table[{0, 2}][0].peers.begin(), table[{0, 2}][0].peers.end());
  const Boxes boxes(std::move(table));
  Collective collective = AnyOrder(group, boxes);
  for (const CarrySchedule& one : OfAll(collective, {2}, 100)) {
    EXPECT_THAT(one.rounds, IsEmpty());
    ASSERT_THAT(one.collectives, SizeIs(1));
    EXPECT_TRUE(one.collectives[0].reduces);
    ASSERT_THAT(one.collectives[0].boxes, SizeIs(3));
    EXPECT_EQ(one.collectives[0].boxes.at(4)[0].src, 10);
    EXPECT_EQ(one.messages, 2);
  }
  collective.sums_in_any_order = false;
  for (const CarrySchedule& one : OfAll(collective, {2}, 100)) {
    EXPECT_THAT(one.collectives, IsEmpty());
    EXPECT_THAT(one.rounds, SizeIs(1));
  }
}

// What a rank receives may be two boxes, which all others have as well.
TEST(CarrySchedule, EachBoxIsAReduction) {
  const std::vector<int> group = {0, 1};
  Boxes::Table table;
  for (const int rank : group) {
    table[{0, rank}] = {Piece(group, 3 * rank, 0, 3), Piece(group, 6 + 2 * rank, 3, 2)};
  }
  const Boxes boxes(std::move(table));
  for (const CarrySchedule& one : OfAll(AnyOrder(group, boxes), {2}, 100)) {
    EXPECT_THAT(one.rounds, IsEmpty());
    EXPECT_THAT(one.collectives, SizeIs(2));
  }
}

TEST(CarrySchedule, AnotherPatternIsNoReduction) {
  const std::vector<int> group = {0, 1, 2};
  std::vector<Boxes::Table> tables(6, Reduction(group, 4));
  tables[0][{0, 2}].clear();                            // one rank receives nothing
  tables[1][{0, 1}] = {Piece(group, 4, 0, 3)};          // or less
  tables[2][{0, 1}] = {Piece({0, 2}, 4, 0, 4)};         // or not of all
  tables[3][{0, 1}] = {Piece({0, 1, 1}, 4, 0, 4)};      // or of one twice
  tables[4][{0, 1}].push_back(Piece(group, 30, 4, 1));  // or more
  for (const int rank : group) tables[5][{0, rank}] = {Piece(group, 0, 0, 4)};  // all the same
  for (Boxes::Table& table : tables) {
    const Boxes boxes(std::move(table));
    const auto all = OfAll(AnyOrder(group, boxes), {4}, 1000);
    for (const CarrySchedule& one : all) EXPECT_THAT(one.collectives, IsEmpty());
    ExpectThatPairsAgree(group, all, 1000);
  }
}

// Of two ranks each receives one other's alone.
TEST(CarrySchedule, TwoRanksThatGiveUnlikePartsAreNoGather) {
  const std::vector<int> group = {0, 1};
  Boxes::Table table;
  for (const int rank : group) table[{0, rank}] = {Piece({0}, 0, 0, 3), Piece({1}, 0, 3, 2)};
  const Boxes boxes(std::move(table));
  const Collective collective = {
      .kind = CollectiveKind::kAllGather, .native = true, .group = group, .boxes = &boxes};
  const auto all = OfAll(collective, {4}, 8);
  for (const CarrySchedule& one : all) EXPECT_THAT(one.collectives, IsEmpty());
  ExpectThatPairsAgree(group, all, 8);
}

}  // namespace
}  // namespace dtensor
