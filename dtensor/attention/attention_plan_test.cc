#include "dtensor/attention/attention_plan.h"

#include <string>

#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Sizes {
  int64_t s = 4096, t = 4096, heads = 8, kv_heads = 8, head_dim = 64;
};

AttentionProblem Problem(absl::string_view mesh_text, absl::string_view q, absl::string_view kv,
                         const Sizes& sizes = {}) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
  AttentionProblem problem;
  problem.q = Layout::Parse(mesh, q).value();
  problem.kv = Layout::Parse(mesh, kv).value();
  problem.q_shape = {1, sizes.s, sizes.heads, sizes.head_dim};
  problem.kv_shape = {1, sizes.t, sizes.kv_heads, sizes.head_dim};
  problem.mask = AttentionMask::Causal();
  return problem;
}

std::vector<AttentionPlan> Plans(const AttentionProblem& problem, const CostModel& links = {}) {
  const auto plans = AttentionPlans(problem, links);
  DT_EXPECT_OK(plans.status());
  return plans.ok() ? *plans : std::vector<AttentionPlan>();
}

std::vector<std::string> Names(const AttentionProblem& problem) {
  std::vector<std::string> names;
  for (const AttentionPlan& plan : Plans(problem)) {
    const std::string text = plan.ToString(problem.q.mesh());
    names.push_back(text.substr(0, text.find(':')));
  }
  return names;
}

constexpr absl::string_view kZigzag = "[] [cp:zigzag] [] []";

TEST(AttentionPlan, OffersWhatTheLayoutsAllow) {
  EXPECT_THAT(Names(Problem("cp=4", kZigzag, kZigzag)),
              ElementsAre("ring", "gather", "all-to-all over cp"));
  // Two key heads are not shared by four ranks.
  EXPECT_THAT(Names(Problem("cp=4", kZigzag, kZigzag, {.kv_heads = 2})),
              ElementsAre("ring", "gather"));
  // Nor are eight by two ranks of tp and three of cp.
  EXPECT_THAT(Names(Problem("tp=2,cp=3", "[] [cp] [tp] []", "[] [cp] [tp] []")),
              ElementsAre("ring", "gather"));
  EXPECT_THAT(Names(Problem("u=2,r=2", "[] [u,r] [] []", "[] [u,r] [] []")),
              ElementsAre("ring", "gather", "all-to-all over u, ring over r",
                          "all-to-all over r, ring over u", "all-to-all over u,r"));
  // Nothing is streamed where not the same axes split both.
  EXPECT_THAT(Names(Problem("cp=4", kZigzag, "[] [] [] []")), IsEmpty());
  EXPECT_THAT(Names(Problem("cp=4", "[] [] [] []", kZigzag)), IsEmpty());
  EXPECT_THAT(Names(Problem("a=2,b=2", "[] [a,b] [] []", "[] [a] [] []")), IsEmpty());
}

// The volumes of the literature, per rank: n = s/p positions, e bytes an element.
TEST(AttentionPlan, CountsTheBytesOfTheTextbook) {
  for (const int64_t kv_heads : {8, 4}) {
    AttentionProblem problem = Problem("cp=4", kZigzag, kZigzag, {.kv_heads = kv_heads});
    const int64_t p = 4, n = 4096 / p, e = 4, d = 64, h = 8;
    const int64_t hop = 2 * e * n * kv_heads * d;
    for (const bool backward : {false, true}) {
      problem.backward = backward;
      const auto plans = Plans(problem);
      ASSERT_EQ(plans.size(), 3);
      EXPECT_EQ(plans[0].bytes, p * hop * ((p - 1) + (backward ? p - 1 + p : 0)));
      EXPECT_EQ(plans[1].bytes, p * hop * (p - 1) * (backward ? 2 : 1));
      EXPECT_EQ(plans[2].bytes,
                p * e * n * d * (2 * h + 2 * kv_heads) * (p - 1) / p * (backward ? 2 : 1));
      // Buffers of the ring do not grow with p, gathered keys do.
      EXPECT_EQ(plans[0].extra_bytes, 2 * hop * (backward ? 2 : 1));
      EXPECT_EQ(plans[1].extra_bytes, hop * (p - 1 + (backward ? p : 0)));
      EXPECT_EQ(plans[0].kept_bytes, 0);
      EXPECT_EQ(plans[1].kept_bytes, backward ? hop * (p - 1) : 0);
      EXPECT_EQ(plans[2].kept_bytes, backward ? e * n * h * d : 0);
    }
  }
}

CostModel Links(absl::string_view text) { return CostModel::Parse(text).value(); }

TEST(AttentionPlan, ChoosesTheFastest) {
  const auto chosen = [](const AttentionProblem& problem, absl::string_view links,
                         int64_t cap = -1) {
    return std::string(ToString(ChooseAttentionPlan(Plans(problem, Links(links)), cap).kind));
  };
  const AttentionProblem balanced = Problem("cp=4", kZigzag, kZigzag);
  // Fast links hide behind the kernel: nothing is faster than that, and nothing needs less memory.
  EXPECT_EQ(chosen(balanced, "link * 1 100\nmultiply 100"), "ring");
  // In training what each layer keeps comes first.
  AttentionProblem recorded = Problem("cp=2", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []");
  recorded.backward = true;
  EXPECT_EQ(chosen(recorded, "link * 1 100\nmultiply 100"), "ring");
  // A slow link hides behind nothing. Then fewer bytes win: 4 heads of q and o, and of k and v,
  // less 1/4 each, are fewer than 3 hops of k and v.
  EXPECT_EQ(chosen(balanced, "link * 1 0.1\nmultiply 100000"), "all-to-all");
  // With 8 query heads for each key head they are not.
  const AttentionProblem grouped = Problem("cp=4", kZigzag, kZigzag, {.heads = 32, .kv_heads = 4});
  EXPECT_NE(chosen(grouped, "link * 1 0.1\nmultiply 100000"), "all-to-all");
  // Many slow messages cost more than one.
  EXPECT_EQ(chosen(Problem("cp=8", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []",
                           {.s = 64, .t = 64, .kv_heads = 2}),
                   "link * 100 100\nmultiply 1000"),
            "gather");
  // Contiguous and causal, a ring waits for its last rank; whole sequences are balanced.
  EXPECT_EQ(chosen(Problem("cp=4", "[] [cp] [] []", "[] [cp] [] []"), "link * 1 100\nmultiply 100"),
            "all-to-all");
  // Memory: two blocks of 4 key heads fit, copies of 8 and 4 heads twice do not.
  const AttentionProblem shared = Problem("cp=4", kZigzag, kZigzag, {.kv_heads = 4});
  EXPECT_EQ(chosen(shared, "link * 1 0.1\nmultiply 100000"), "all-to-all");
  const int64_t block = 2 * 4 * 1024 * 4 * 64;
  EXPECT_EQ(chosen(shared, "link * 1 0.1\nmultiply 100000", 2 * block), "ring");
  EXPECT_EQ(chosen(shared, "link * 1 0.1\nmultiply 100000", 0), "ring");
  // Also where the ring needs more than others, for its sums are wider.
  AttentionProblem narrow = recorded;
  narrow.dtype = DType::kBF16;
  const auto plans = Plans(narrow);
  ASSERT_GT(plans[0].extra_bytes, plans[1].extra_bytes);
  EXPECT_NE(chosen(narrow, "", plans[1].extra_bytes), "ring");
  EXPECT_EQ(chosen(narrow, "", 0), "ring");
}

TEST(AttentionPlan, TheRingIsWhatARankHolds) {
  const AttentionProblem problem =
      Problem("tp=2,cp=3", "[] [cp] [tp] []", "[] [cp] [tp] []", {.s = 4, .t = 10, .kv_heads = 4});
  const RingProblem ring = RingOf(problem, 0);
  EXPECT_THAT(ring.axes, ElementsAre(1));
  EXPECT_EQ(ring.heads, 4);
  EXPECT_EQ(ring.kv_heads, 2);
  EXPECT_EQ(ring.q_start, 6);  // both end together
  EXPECT_EQ(ring.kv_start, 0);
  DT_ASSERT_OK_AND_ASSIGN(const RingSchedule schedule, RingSchedule::Create(ring));
  DT_EXPECT_OK(schedule.Verify());
  EXPECT_EQ(schedule.q_positions(0).ToString(), "{6..7}");
}

}  // namespace
}  // namespace dtensor
