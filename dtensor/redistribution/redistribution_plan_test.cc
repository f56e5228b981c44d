#include "dtensor/redistribution/redistribution_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {

class RedistributionPlanTestPeer {
 public:
  static void ClaimInPlace(RedistributionPlan& plan) { plan.in_place_ = true; }
};

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "[tp] []" on "tp=4".
absl::StatusOr<RedistributionPlan> Plan(absl::string_view mesh, absl::string_view from,
                                        absl::string_view to, Dims shape, DType dtype = DType::kF32,
                                        const RedistributionOptions& options = {}) {
  const DeviceMesh m = DeviceMesh::Parse(mesh).value();
  return RedistributionPlan::Create(Layout::Parse(m, from).value(), Layout::Parse(m, to).value(),
                                    shape, dtype, options);
}

// What follows the colon of ToString, of a plan that is proved and moves the bound.
std::string Rounds(absl::string_view mesh, absl::string_view from, absl::string_view to,
                   Dims shape) {
  const auto plan = Plan(mesh, from, to, shape);
  if (!plan.ok()) return std::string(plan.status().message());
  DT_EXPECT_OK(plan->Verify());
  EXPECT_EQ(plan->Bytes().total, plan->Bound().total);
  const std::string text = plan->ToString();
  return text.substr(text.rfind(": ") + 2);
}

// Blocks of 3 and of 7, dealt to ranks in turn, meet in a pattern that repeats: however often it
// does, a plan is as large, in which ranks own parts of what is reduced, keep and gather them too.
TEST(RedistributionPlanTest, PlansOfUnlikeBlocksDoNotGrowWithTheTensor) {
  const auto boxes_of = [](const RedistributionPlan& plan) {
    size_t boxes = 0;
    for (int s = 0; s < std::max<int>(1, plan.rounds().size()); ++s) {
      for (int rank : plan.Ranks()) boxes += plan.Receives(s, rank).size();
    }
    return boxes;
  };
  for (const auto& [mesh, from, to] : std::vector<std::array<absl::string_view, 3>>{
           {"a=4", "[_ x 4(a) x 3]", "[_ x 4(a) x 7]"},
           {"a=2,b=2", "[_ x 2(b) x 3] P(sum: a)", "[_ x 2(a) x 7]"},
           {"a=2,b=2", "[_ x 2(a) x 3] P(sum: b)", "[_ x 2(b) x 7]"},
           {"a=2,b=2,c=2", "[_ x 2(a) x 3] P(sum: b)", "[_ x 2(c) x 7]"},
           {"a=2,b=2,c=2", "[_ x 2(a) x 3] P(sum: b)", "[_ x 2(c) x 7] P(sum: a)"},
           {"a=2,b=2", "[_ x 2(a) x 3]", "[_ x 2(b) x 7] P(sum: a)"},
           {"a=2,b=2", "[a:zigzag] P(sum: b)", "[_ x 2(b)]"},
           {"a=2,b=2", "[_ x 2(a)] P(sum: b)", "[b:zigzag]"}}) {
    SCOPED_TRACE(absl::StrCat(mesh, " ", from, " -> ", to));
    DT_ASSERT_OK_AND_ASSIGN(const auto small, Plan(mesh, from, to, {840}));
    DT_ASSERT_OK_AND_ASSIGN(const auto large, Plan(mesh, from, to, {1'000'000'000'000}));
    DT_EXPECT_OK(small.Verify());
    EXPECT_EQ(large.Bytes().total, large.Bound().total);
    EXPECT_LE(boxes_of(large), 2 * boxes_of(small) + 100);
  }
}

TEST(RedistributionPlanTest, ToStringNamesLayoutsShapeTypeAndRounds) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, Plan("tp=4", "[tp] []", "[] []", {8, 4}));
  EXPECT_EQ(plan.ToString(), "[tp] [] -> [] [], [8, 4] f32: all-gather(tp) 96 B");
}

struct Golden {
  absl::string_view mesh, from, to;
  Dims shape;
  absl::string_view rounds;
};

TEST(RedistributionPlanTest, NamedTransitionsOnOneAxis) {
  for (const Golden& g : std::vector<Golden>{
           {"tp=4", "[tp] []", "[] []", {8, 4}, "all-gather(tp) 96 B"},
           {"tp=4", "[tp] []", "[] [tp]", {8, 4}, "all-to-all(tp) 24 B"},
           {"tp=4", "[] [] P(sum: tp)", "[tp] []", {8, 4}, "reduce-scatter(tp) 96 B"},
           {"tp=4",
            "[] [] P(sum: tp)",
            "[] []",
            {8, 4},
            "all-reduce(tp) 96 B, all-reduce(tp) 96 B"},
           {"tp=2", "[] [] P(sum: tp)", "[] []", {8, 4}, "all-reduce(tp) 128 B"},
           {"tp=4", "[] []", "[tp] []", {8, 4}, "view"},
           {"tp=4", "[] []", "[tp:zigzag] []", {16, 4}, "copy"},
           {"tp=4", "[] []", "[] [] P(sum: tp)", {8, 4}, "fill"},
           {"tp=4", "[] []", "[] [] P(avg: tp)", {8, 4}, "view"},
           {"tp=4", "[tp] []", "[] [] P(max: tp)", {8, 4}, "fill"},
           {"tp=4", "[tp] []", "[] [] P(avg: tp)", {8, 4}, "all-gather(tp) 96 B"},
           {"tp=4", "[tp] []", "[tp:zigzag] []", {16, 4}, "exchange(tp) 64 B"},
           {"tp=4", "[tp] []", "[tp] []", {8, 4}, "view"},
           {"tp=4", "scalar P(sum: tp)", "scalar", {}, "all-reduce(tp) 12 B, all-reduce(tp) 4 B"},
           {"tp=4", "[tp] []", "[] []", {0, 4}, "copy"},
           {"tp=4", "[tp] []", "[] []", {1, 4}, "all-gather(tp) 16 B"},
           {"tp=4", "[tp] []", "[] [tp]", {1, 1}, "view"},
           {"tp=4", "[tp]", "[tp x 1]", {8}, "view"},
           {"tp=1", "[] []", "[] [tp]", {8, 4}, "view"}}) {
    SCOPED_TRACE(absl::StrCat(g.mesh, " ", g.from, " -> ", g.to));
    EXPECT_EQ(Rounds(g.mesh, g.from, g.to, g.shape), g.rounds);
  }
}

TEST(RedistributionPlanTest, NamedTransitionsOnTwoAxes) {
  for (const Golden& g : std::vector<Golden>{
           // A square swap is a permute, any other an exchange of exact overlaps.
           {"a=2,b=2", "[a] [b]", "[b] [a]", {8, 4}, "permute(a,b) 32 B"},
           {"a=2,b=4", "[a] [b]", "[b] [a]", {8, 4}, "exchange(a,b) 16 B"},
           {"a=2,b=2", "[a,b] []", "[b,a] []", {8, 4}, "permute(a,b) 32 B"},
           {"a=2,b=2", "[a] []", "[b] []", {8, 4}, "permute(a) 64 B"},
           {"a=2,b=2", "[a,b] []", "[] [a,b]", {8, 4}, "all-to-all(a,b) 24 B"},
           {"a=2,b=2", "[a,b] []", "[a] [b]", {8, 4}, "all-to-all(b) 16 B"},
           {"a=2,b=2", "[a,b] []", "[a] []", {8, 4}, "all-gather(b) 32 B"},
           {"a=2,b=2", "[a,b] []", "[] []", {8, 4}, "all-gather(a,b) 96 B"},
           {"a=2,b=2", "[a] [b]", "[] []", {8, 4}, "all-gather(a,b) 96 B"},
           {"a=2,b=2", "[a,b] []", "[b] []", {8, 4}, "exchange(a,b) 64 B"},
           // A slice is free: only what is left of it moves.
           {"a=2,b=2", "[b] []", "[] [a,b]", {8, 4}, "all-to-all(b) 16 B"},
           {"a=2,b=2", "[a] []", "[] [b]", {8, 4}, "all-gather(a) 32 B"},
           // Reduce before gathering; replicas are helpers.
           {"a=2,b=2", "[b] [] P(sum: a)", "[a,b] []", {8, 4}, "reduce-scatter(a,b) 64 B"},
           {"a=2,b=2", "[b] [] P(sum: a)", "[b,a] []", {8, 4}, "reduce-scatter(a) 32 B"},
           {"a=2,b=2", "[b] [] P(sum: a)", "[b] []", {8, 4}, "all-reduce(a) 64 B"},
           {"a=2,b=2",
            "[b] [] P(sum: a)",
            "[] []",
            {8, 4},
            "reduce-scatter(a) 32 B, all-gather(a,b) 96 B"},
           {"a=2,b=2", "[] [] P(sum: a)", "[] []", {8, 4}, "all-reduce(a) 128 B"},
           {"a=4,b=2",
            "[] [] P(sum: a)",
            "[] []",
            {8, 4},
            "reduce-scatter(a) 48 B, all-gather(a,b) 112 B"},
           {"a=2,b=2",
            "[] [] P(sum: a,b)",
            "[] []",
            {8, 4},
            "all-reduce(a,b) 96 B, all-reduce(a,b) 96 B"},
           {"a=2,b=2", "[] [] P(sum: a,b)", "[a] [b]", {8, 4}, "reduce-scatter(a,b) 96 B"},
           {"a=2,b=2", "[] [] P(sum: a,b)", "[] [] P(sum: b)", {8, 4}, "all-reduce(a) 128 B"},
           {"a=2,b=2",
            "[] [] P(sum: a,b)",
            "[a] [] P(sum: b)",
            {8, 4},
            "reduce-scatter(a) 64 B"}}) {
    SCOPED_TRACE(absl::StrCat(g.mesh, " ", g.from, " -> ", g.to));
    EXPECT_EQ(Rounds(g.mesh, g.from, g.to, g.shape), g.rounds);
  }
}

// What a decoder block with sequence parallelism asks for: one call each.
TEST(RedistributionPlanTest, DecoderBlock) {
  for (absl::string_view mesh : {"dp=2,tp=2", "dp=2,tp=4"}) {
    const Dims shape = {4, 8, 16};  // batch, sequence, features
    for (const auto& [from, to, kind] :
         std::vector<std::tuple<std::string, std::string, CollectiveKind>>{
             {"[dp] [tp] []", "[dp] [] []", CollectiveKind::kAllGather},
             {"[dp] [] [] P(sum: tp)", "[dp] [tp] []", CollectiveKind::kReduceScatter},
             {"[dp] [] [] P(sum: tp)", "[dp] [] []", CollectiveKind::kAllReduce}}) {
      DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, Plan(mesh, from, to, shape));
      int calls = 0;
      for (const RedistributionRound& round : plan.rounds()) {
        EXPECT_EQ(round.kind, kind) << plan.ToString();
        EXPECT_THAT(round.axes, ElementsAre(1)) << plan.ToString();
        calls += !round.continues;
      }
      EXPECT_EQ(calls, 1) << plan.ToString();
    }
  }
}

TEST(RedistributionPlanTest, TermsAreListedInAscendingOrder) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          Plan("a=2,b=2", "[] P(avg: a,b)", "[b,a]", {8}));
  EXPECT_EQ(plan.op(), ReduceOp::kAvg);
  EXPECT_EQ(plan.scale(), 0.25);
  const std::vector<ReceiveBox> boxes = plan.Receives(0, 2);
  ASSERT_EQ(boxes.size(), 1);
  EXPECT_THAT(boxes[0].peers, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(boxes[0].dims, ElementsAre(MatchedRun{.src = 2, .dst = 0, .length = 2}));
}

// An average is a scaled sum: terms that stay are scaled where they lie, and nothing moves.
TEST(RedistributionPlanTest, SumsAndAveragesBecomeEachOther) {
  const auto plan = [](absl::string_view from, absl::string_view to) {
    const auto made = Plan("a=2,b=3", from, to, {6});
    DT_EXPECT_OK(made->Verify());
    EXPECT_EQ(made->Bytes().total, made->Bound().total) << made->ToString();
    return *made;
  };
  EXPECT_EQ(plan("[] P(sum: b)", "[] P(avg: b)").ToString(),
            "[] P(sum: b) -> [] P(avg: b), [6] f32: copy");
  EXPECT_EQ(plan("[] P(sum: b)", "[] P(avg: b)").scale(), 3);
  EXPECT_EQ(plan("[] P(avg: a,b)", "[] P(sum: a,b)").scale(), 1.0 / 6);
  EXPECT_EQ(plan("[] P(avg: a) P(sum: b)", "[] P(sum: a) P(avg: b)").scale(), 1.5);
  EXPECT_TRUE(plan("[] P(avg: a) P(sum: b)", "[a] P(avg: b)").Bytes().total > 0);
  EXPECT_EQ(plan("[] P(sum: a) P(avg: b)", "[]").scale(), 1.0 / 3);
  EXPECT_EQ(plan("[] P(sum: a) P(avg: b)", "[]").op(), ReduceOp::kAvg);
  EXPECT_EQ(plan("[] P(sum: a) P(avg: b)", "[] P(avg: b)").op(), ReduceOp::kSum);
  EXPECT_EQ(plan("[] P(sum: a) P(avg: b)", "[] P(avg: b)").scale(), 1);
  EXPECT_EQ(plan("[]", "[] P(sum: a) P(avg: b)").ToString(),
            "[] -> [] P(sum: a) P(avg: b), [6] f32: fill");
}

TEST(RedistributionPlanTest, BoxesAscendInTheResultAndNameThisRank) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, Plan("a=3", "[a]", "[]", {7}));
  const std::vector<ReceiveBox> boxes = plan.Receives(0, 1);
  ASSERT_EQ(boxes.size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(boxes[i].peers, ElementsAre(i));
  EXPECT_THAT(boxes[1].dims, ElementsAre(MatchedRun{.src = 0, .dst = 3, .length = 3}));
  EXPECT_THAT(boxes[2].dims, ElementsAre(MatchedRun{.src = 0, .dst = 6, .length = 1}));
}

// Blocks dealt in turn stay one strided box, whatever the size.
TEST(RedistributionPlanTest, StridedShardsAreOneBoxPerPeer) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          Plan("a=2", "[_ x 2(a)]", "[]", {1 << 20}));
  const std::vector<ReceiveBox> boxes = plan.Receives(0, 0);
  ASSERT_EQ(boxes.size(), 2);
  EXPECT_THAT(
      boxes[1].dims,
      ElementsAre(MatchedRun{
          .src = 0, .dst = 1, .length = 1, .count = 1 << 19, .src_stride = 1, .dst_stride = 2}));
}

// The owner of an element among replicas is found by position in a strided set here.
TEST(RedistributionPlanTest, PivotOfStridedShardsIsStrided) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          Plan("a=2,b=3", "[_ x 2(a)] P(sum: b)", "[]", {6 << 20}));
  DT_ASSERT_OK(Plan("a=2,b=3", "[_ x 2(a)] P(sum: b)", "[]", {24})->Verify());
  for (int s : {0, 1}) EXPECT_LE(plan.Receives(s, 4).size(), 6) << s;
}

TEST(RedistributionPlanTest, HelpersSplitTheDimensionThatSplitsEvenly) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          Plan("a=4", "[] [] P(sum: a)", "[] []", {3, 8}));
  EXPECT_EQ(plan.ToString(),
            "[] [] P(sum: a) -> [] [], [3, 8] f32: all-reduce(a) 72 B, all-reduce(a) 72 B");
}

TEST(RedistributionPlanTest, WhatBecomesPartialIsFilledWithTheIdentity) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, Plan("a=2", "[a]", "[] P(sum: a)", {4}));
  EXPECT_TRUE(plan.fills_identity());
  EXPECT_TRUE(plan.moves_nothing());
  EXPECT_FALSE(plan.is_view());
  ASSERT_EQ(plan.Receives(0, 1).size(), 1);
  EXPECT_THAT(plan.Receives(0, 1)[0].dims,
              ElementsAre(MatchedRun{.src = 0, .dst = 2, .length = 2}));
}

TEST(RedistributionPlanTest, UnlikeTextsOfOneLayoutAreAView) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan, Plan("a=4", "[a]", "[_ x 4(a)]", {4}));
  EXPECT_NE(plan.from(), plan.to());
  EXPECT_TRUE(plan.is_view());
}

TEST(RedistributionPlanTest, AnAxisOfSizeOneChangesNothing) {
  for (absl::string_view from : {"[a] []", "[] [] P(sum: a)"}) {
    DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan one,
                            Plan("a=3,one=1", from, "[] [one]", {7, 4}));
    DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan none, Plan("a=3", from, "[] []", {7, 4}));
    EXPECT_EQ(one.ToString(), none.ToString());
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(one.BytesReceived(rank), none.BytesReceived(rank));
  }
}

TEST(RedistributionPlanTest, DigestTellsRequestsApart) {
  const auto digest = [](absl::string_view mesh, absl::string_view from, absl::string_view to,
                         Dims shape, DType dtype = DType::kF32) {
    return Plan(mesh, from, to, shape, dtype)->digest();
  };
  const uint64_t base = digest("a=2", "[a] []", "[] []", {4, 6});
  EXPECT_EQ(digest("a=2", "[a] []", "[] []", {4, 6}), base);
  EXPECT_NE(digest("b=2", "[b] []", "[] []", {4, 6}), base);
  EXPECT_NE(digest("a=4", "[a] []", "[] []", {4, 6}), base);
  EXPECT_NE(digest("a=2", "[] [a]", "[] []", {4, 6}), base);
  EXPECT_NE(digest("a=2", "[a:zigzag] []", "[] []", {4, 6}), base);
  EXPECT_NE(digest("a=2", "[a] []", "[] [a]", {4, 6}), base);
  EXPECT_NE(digest("a=2", "[a] []", "[] []", {6, 4}), base);
  EXPECT_NE(digest("a=2", "[a] []", "[] []", {4, 6}, DType::kI32), base);
  EXPECT_NE(digest("a=2", "[] [] P(sum: a)", "[] []", {4, 6}),
            digest("a=2", "[] [] P(max: a)", "[] []", {4, 6}));
  EXPECT_NE(digest("a=2,b=2", "[] P(sum: a) P(avg: b)", "[]", {4}),
            digest("a=2,b=2", "[] P(avg: a) P(sum: b)", "[]", {4}));
}

// A digest is compared between processes, perhaps of other builds.
TEST(RedistributionPlanTest, DigestIsTheSameEverywhere) {
  EXPECT_EQ(Plan("a=2", "[a] []", "[] []", {4, 6})->digest(), 17198753432374458805u);
}

TEST(RedistributionPlanTest, RefusesWhatHasNoMeaning) {
  const auto refusal = [](absl::string_view from, absl::string_view to, Dims shape,
                          DType dtype = DType::kF32) {
    const auto plan = Plan("a=2,b=2", from, to, shape, dtype);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(plan.status().message());
  };
  EXPECT_THAT(refusal("[] P(max: a)", "[] P(sum: a)", {4}),
              AllOf(HasSubstr("[] P(max: a) -> [] P(sum: a), [4] f32"), HasSubstr("axis \"a\""),
                    HasSubstr("first")));
  EXPECT_THAT(refusal("[] P(avg: a)", "[]", {4}, DType::kI32), HasSubstr("average of i32"));
  EXPECT_THAT(refusal("[]", "[] P(avg: b)", {4}, DType::kI64), HasSubstr("average of i64"));
  EXPECT_THAT(refusal("[] P(sum: a)", "[]", {4}, DType::kBool), HasSubstr("P(max)"));
  EXPECT_THAT(refusal("[] P(product: a)", "[]", {4}, DType::kBool),
              HasSubstr("bool has no product"));
  EXPECT_THAT(refusal("[]", "[] []", {4}), HasSubstr("dimensions"));
  EXPECT_THAT(refusal("[] []", "[] []", {4}), HasSubstr("dimensions"));
  EXPECT_THAT(refusal("[]", "[a]", {-4}), HasSubstr("negative"));
}

// Terms that are all reduced leave nothing of their op: the result may be partial by another.
TEST(RedistributionPlanTest, AReducedOpMayBeFollowedByAnother) {
  EXPECT_EQ(Rounds("a=2,b=2", "[] P(max: a)", "[a] P(sum: b)", {4}), "reduce-scatter(a) 4 B");
}

// Bytes of all ranks together are int64: what needs more is refused, and never wraps.
TEST(RedistributionPlanTest, RefusesMoreBytesThanAnInt64Counts) {
  const auto plan = [](absl::string_view from, absl::string_view to, int64_t n,
                       const RedistributionOptions& options = {}) {
    return Plan("a=1024", from, to, {n}, DType::kF64, options);
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("together"), HasSubstr("[a] -> []"), HasSubstr("more axes")));
  EXPECT_FALSE(plan("[a]", "[]", int64_t{1} << 61).ok());
  EXPECT_THAT(plan("[a]", "[]", int64_t{1} << 54), refused);
  EXPECT_THAT(plan("[a]", "[]", int64_t{1} << 51), refused);
  EXPECT_EQ(plan("[a]", "[]", int64_t{1} << 50)->Bytes().total, (int64_t{1} << 53) * 1023);
  EXPECT_EQ(plan("[a]", "[]", int64_t{1} << 50)->Bound().total, (int64_t{1} << 53) * 1023);
  DT_EXPECT_OK(plan("[]", "[a]", int64_t{1} << 56));
  // Other ways are looked at which would move too much.
  for (const RedistributionObjective objective :
       {RedistributionObjective::kBusiest, RedistributionObjective::kLatency}) {
    DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan reduce,
                            plan("[] P(sum: a)", "[]", int64_t{1} << 48, {.objective = objective}));
    EXPECT_EQ(reduce.Bytes().total, (int64_t{1} << 51) * 1023 * 2);
    EXPECT_EQ(reduce.Bytes().busiest, reduce.Bound().busiest);
  }
}

// Terms travel in the source's type, and complete elements in the result's where it is smaller.
TEST(RedistributionPlanTest, TheBoundOfAPlanThatConverts) {
  const auto plan = [](absl::string_view from, absl::string_view to, DType type, DType result) {
    return Plan("a=4", from, to, {8}, type, {.dtype = result}).value();
  };
  const RedistributionPlan reduce = plan("[] P(sum: a)", "[]", DType::kF32, DType::kBF16);
  EXPECT_EQ(reduce.Bound().total, 8 * 3 * 4 + 8 * 3 * 2);
  EXPECT_EQ(reduce.Bytes().total, reduce.Bound().total);
  EXPECT_EQ(reduce.Bytes().busiest, reduce.Bound().busiest);
  // Converted where elements arrive.
  const RedistributionPlan gather = plan("[a]", "[]", DType::kF32, DType::kBF16);
  EXPECT_EQ(gather.Bound().total, 8 * 3 * 2);
  EXPECT_EQ(gather.Bytes().total, 8 * 3 * 4);
  const RedistributionPlan widen = plan("[a]", "[]", DType::kBF16, DType::kF32);
  EXPECT_EQ(widen.Bound().total, 8 * 3 * 2);
  EXPECT_EQ(widen.Bytes().total, widen.Bound().total);
}

TEST(RedistributionPlanTest, BoolReducesByMaxAndMin) {
  DT_EXPECT_OK(Plan("a=2", "[] P(max: a)", "[]", {4}, DType::kBool));
  DT_EXPECT_OK(Plan("a=2", "[] P(min: a)", "[]", {4}, DType::kBool));
}

TEST(RedistributionPlanTest, AHundredThousandRanks) {
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                          Plan("a=100,b=1000", "[a] [b]", "[b] [a]", {1 << 20, 1 << 20}));
  int64_t bytes = 0;
  for (const ReceiveBox& box : plan.Receives(0, 77777)) {
    if (box.peers[0] != 77777) bytes += box.elements() * 4;
  }
  EXPECT_EQ(bytes, plan.BytesReceived(77777));
  DT_ASSERT_OK_AND_ASSIGN(const RedistributionPlan reduce,
                          Plan("a=100,b=1000", "[a] [] P(sum: b)", "[] [b]", {1 << 20, 1 << 20}));
  EXPECT_EQ(reduce.rounds().size(), 2);
  EXPECT_EQ(reduce.Receives(1, 5).size(), 99);
}

// Six terms for two ranks in need that hold one each: reduced by the holder, by both, by each.
TEST(RedistributionPlanTest, ObjectivesChooseWhoReduces) {
  const auto rounds = [](RedistributionObjective objective, Dims shape) {
    const auto plan =
        Plan("a=2,b=6", "[a] P(sum: b)", "[b]", shape, DType::kF32, {.objective = objective});
    if (shape[0] < 1000) {
      DT_EXPECT_OK(plan->Verify());
    }
    const std::string text = plan->ToString();
    return text.substr(text.rfind(": ") + 2);
  };
  EXPECT_EQ(rounds(RedistributionObjective::kTotal, {96}),
            "reduce-scatter(b) 320 B, all-gather(a) 64 B");
  EXPECT_EQ(rounds(RedistributionObjective::kBusiest, {96}),
            "exchange(a,b) 192 B, all-gather(a) 32 B");
  EXPECT_EQ(rounds(RedistributionObjective::kLatency, {96}), "reduce-scatter(a,b) 384 B");
  EXPECT_EQ(rounds(RedistributionObjective::kLatency, {12 << 20}),
            "exchange(a,b) 25165824 B, all-gather(a) 4194304 B");
}

TEST(RedistributionPlanTest, ObjectivesHaveNames) {
  for (RedistributionObjective o :
       {RedistributionObjective::kTotal, RedistributionObjective::kBusiest,
        RedistributionObjective::kLatency}) {
    EXPECT_EQ(ParseRedistributionObjective(ToString(o)).value(), o);
  }
  EXPECT_THAT(ParseRedistributionObjective("speed").status().message(),
              HasSubstr("\"speed\"; use total, busiest or latency"));
}

// Nodes of four: each element crosses between nodes once for each node, not for each rank.
TEST(RedistributionPlanTest, SlowLinksAreCrossedFirstAndOnce) {
  RedistributionOptions options;
  options.links.Set("node", {0.1, 1});
  const auto rounds = [&](absl::string_view from, absl::string_view to) {
    const auto plan = Plan("node=2,gpu=4", from, to, {1 << 12}, DType::kF32, options);
    DT_EXPECT_OK(plan->Verify());
    EXPECT_EQ(plan->Bytes().total, plan->Bound().total);
    const std::string text = plan->ToString();
    return text.substr(text.rfind(": ") + 2);
  };
  EXPECT_EQ(rounds("[node]", "[]"), "slice() 0 B, all-gather(node) 2048 B, all-gather(gpu) 6144 B");
  EXPECT_EQ(rounds("[node,gpu]", "[]"),
            "slice() 0 B, all-gather(node) 2048 B, all-gather(gpu) 12288 B");
  EXPECT_EQ(rounds("[] P(sum: node,gpu)", "[]"),
            "reduce-scatter(node,gpu) 14336 B, all-gather(node) 2048 B, all-gather(gpu) "
            "12288 B");
  // Nothing to gain where only fast links are crossed, or ranks need unlike parts.
  EXPECT_EQ(rounds("[gpu]", "[]"), "all-gather(gpu) 12288 B");
  EXPECT_EQ(rounds("[node]", "[gpu]"), "exchange(node) 4096 B");
}

// Only where every rank keeps the region it has, and nobody overwrites what another rank reads.
TEST(RedistributionPlanTest, ReducesInPlaceOnlyWhatStaysInPlace) {
  const auto in_place = [](absl::string_view from, absl::string_view to, Dims shape) {
    const auto plan = Plan("dp=2,tp=2", from, to, shape, DType::kF32, {.in_place = true});
    DT_EXPECT_OK(plan->Verify());
    return plan->in_place();
  };
  EXPECT_TRUE(in_place("[] P(sum: dp,tp)", "[]", {4}));
  EXPECT_TRUE(in_place("[] P(sum: dp)", "[]", {4}));
  EXPECT_TRUE(in_place("[] P(sum: dp,tp)", "[] P(sum: tp)", {4}));
  EXPECT_FALSE(in_place("[] P(sum: dp,tp)", "[tp]", {4}));
  EXPECT_FALSE(in_place("[] P(sum: dp,tp)", "[tp]", {1}));
  EXPECT_FALSE(in_place("[dp] P(sum: tp)", "[]", {4}));
}

// Cut along another dimension, a tensor of one element leaves other ranks with none.
TEST(RedistributionPlanTest, VerifyTakesRegionsWithoutElementsForTheSame) {
  const auto plan =
      Plan("b=2,c=2", "[b] [] P(min: c)", "[] [b]", {1, 1}, DType::kF32, {.in_place = true});
  DT_EXPECT_OK(plan->Verify());
}

TEST(RedistributionPlanTest, VerifySeesThatAPlanIsNotInPlace) {
  const auto lie = [](absl::string_view from, absl::string_view to, DType result = DType::kF32) {
    RedistributionPlan plan =
        Plan("dp=2,tp=2", from, to, {4}, DType::kF32, {.dtype = result}).value();
    DT_EXPECT_OK(plan.Verify());
    RedistributionPlanTestPeer::ClaimInPlace(plan);
    return plan.Verify();
  };
  const auto refused = [](absl::string_view why) {
    return StatusIs(absl::StatusCode::kInternal, HasSubstr(why));
  };
  EXPECT_THAT(lie("[] P(sum: dp,tp)", "[tp]"), refused("is not the source's"));
  EXPECT_THAT(lie("[dp]", "[tp]"), refused("is not the source's"));
  // Each rank adds for itself, in what the other one reads.
  EXPECT_THAT(lie("[] P(sum: dp)", "[]"), refused("overwritten"));
  EXPECT_THAT(lie("[] P(sum: dp,tp)", "[]", DType::kBF16), refused("another type"));
  EXPECT_THAT(lie("[] P(sum: dp,tp)", "[]"), IsOk());
}

TEST(RedistributionPlanTest, HonoursTheCap) {
  const auto plan = [](int64_t cap, absl::string_view from, absl::string_view to) {
    return Plan("a=2", from, to, {8, 4}, DType::kF32, {.max_extra_bytes = cap});
  };
  DT_EXPECT_OK(plan(128, "[a] []", "[] []").status());
  EXPECT_EQ(plan(128, "[a] []", "[] []")->ExtraBytes(), 128);
  EXPECT_EQ(plan(128, "[a] []", "[] []")->PeakBytes(), 192);
  DT_EXPECT_OK(plan(0, "[] []", "[a] []").status());  // a view
  EXPECT_EQ(plan(0, "[] []", "[a] []")->PeakBytes(), 128);
  const absl::Status refused = plan(127, "[a] []", "[] []").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("[a] [] -> [] []"), HasSubstr("a rank's result has 128 bytes"),
                    HasSubstr("max_extra_bytes is 127")));
}

}  // namespace
}  // namespace dtensor
