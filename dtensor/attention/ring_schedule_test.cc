#include "dtensor/attention/ring_schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Layout SequenceLayout(const DeviceMesh& mesh, ShardOrder order, int64_t length) {
  const Placements placements(mesh.num_axes(), Shard(0, order));
  return Layout::FromPlacements(mesh, placements, {length}).value();
}

RingProblem Problem(absl::string_view mesh_text, ShardOrder order, int64_t length,
                    absl::string_view mask = "causal") {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text).value();
  RingProblem problem;
  problem.q = problem.kv = SequenceLayout(mesh, order, length);
  problem.q_length = problem.kv_length = length;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) problem.axes.push_back(axis);
  problem.batch = 2, problem.heads = 8, problem.kv_heads = 2, problem.head_dim = 16;
  problem.dtype = DType::kBF16;
  problem.mask = AttentionMask::Parse(mask).value();
  return problem;
}

std::string Cp(int cp) { return absl::StrCat("cp=", cp); }

RingSchedule Plan(const RingProblem& problem) {
  RingSchedule schedule = RingSchedule::Create(problem).value();
  EXPECT_EQ(schedule.Verify(), absl::OkStatus()) << schedule.ToString();
  return schedule;
}

int64_t TotalWork(const RingSchedule& schedule) {
  int64_t work = 0;
  for (const RingStep& step : schedule.steps()) {
    for (const RingTurn& turn : step.turns) work += turn.work;
  }
  return work;
}

struct Counts {
  int blocks = 0, gradients = 0;
};
Counts Messages(const RingSchedule& schedule) {
  Counts counts;
  for (const RingStep& step : schedule.steps()) {
    for (const RingTurn& turn : step.turns) {
      counts.blocks += static_cast<int>(turn.sends.size());
      counts.gradients += static_cast<int>(turn.gradient_sends.size());
    }
  }
  return counts;
}

std::vector<ShardOrder> Orders() {
  return {ShardOrder::Contiguous(), ShardOrder::Zigzag(), ShardOrder::Block(1),
          ShardOrder::Block(3)};
}

TEST(RingSchedule, ProvesItselfAndDoesAllTheWork) {
  for (int cp = 1; cp <= 8; ++cp) {
    for (const ShardOrder order : Orders()) {
      for (const int64_t length : {0, 1, 5, 17, 48, 61}) {
        for (const char* mask : {"full", "causal", "window:1", "prefix:1", "documents:0"}) {
          if (length == 0 && absl::string_view(mask) != "full") continue;
          const RingSchedule schedule = Plan(Problem(Cp(cp), order, length, mask));
          const IndexSet all = IndexSet::Interval(0, length);
          EXPECT_EQ(TotalWork(schedule), schedule.problem().mask.Count(all, all));
        }
      }
      for (const char* mask : {"window:6", "prefix:30", "documents:0,3,20,21,40"}) {
        const RingSchedule schedule = Plan(Problem(Cp(cp), order, 61, mask));
        const IndexSet all = IndexSet::Interval(0, 61);
        EXPECT_EQ(TotalWork(schedule), schedule.problem().mask.Count(all, all)) << mask;
      }
    }
  }
}

TEST(RingSchedule, DoubleRingsProveThemselves) {
  for (const char* mesh :
       {"o=2,i=2", "o=2,i=4", "o=3,i=2", "o=4,i=2", "o=3,i=3", "o=1,i=4", "o=4,i=1"}) {
    for (const ShardOrder order : {ShardOrder::Contiguous(), ShardOrder::Zigzag()}) {
      for (const char* mask : {"full", "causal", "window:6", "prefix:30", "documents:0,3,20,40"}) {
        for (const int64_t length : {41, 72}) {
          const RingSchedule schedule = Plan(Problem(mesh, order, length, mask));
          const IndexSet all = IndexSet::Interval(0, length);
          EXPECT_EQ(TotalWork(schedule), schedule.problem().mask.Count(all, all));
        }
      }
    }
  }
}

TEST(RingSchedule, CrossAttentionAndUnlikeOrders) {
  for (int cp = 1; cp <= 5; ++cp) {
    for (const ShardOrder of_kv : Orders()) {
      for (const char* mask : {"full", "causal", "window:9"}) {
        RingProblem problem = Problem(Cp(cp), ShardOrder::Zigzag(), 29, mask);
        problem.kv_length = 50;
        problem.kv = SequenceLayout(problem.q.mesh(), of_kv, 50);
        const RingSchedule schedule = Plan(problem);
        EXPECT_EQ(TotalWork(schedule),
                  problem.mask.Count(IndexSet::Interval(0, 29), IndexSet::Interval(0, 50)));
      }
    }
  }
}

TEST(RingSchedule, EmptyShardsNeitherWorkNorTravel) {
  const RingSchedule uneven =
      Plan(Problem("cp=3", ShardOrder::Contiguous(), 4));  // ring rank 2 holds none
  EXPECT_EQ(uneven.steps().size(), 2);
  EXPECT_EQ(Messages(uneven).blocks, 1);
  EXPECT_EQ(uneven.BackwardBytes(2), 0);
  const RingSchedule nothing = Plan(Problem("cp=3", ShardOrder::Contiguous(), 0));
  EXPECT_EQ(nothing.steps().size(), 1);
  EXPECT_EQ(nothing.Balance(), 1);
  EXPECT_EQ(nothing.PeakBytes(), 0);
}

// Per step: contiguous cp/(2cp-1), zigzag 1; the diagonals' extra half position makes the rest.
TEST(RingSchedule, CausalBalance) {
  for (int cp = 1; cp <= 8; ++cp) {
    const int64_t n = 1680, length = n * cp;
    EXPECT_NEAR(Plan(Problem(Cp(cp), ShardOrder::Contiguous(), length)).Balance(),
                cp / (2.0 * cp - 1), 1.0 / n);
    EXPECT_NEAR(Plan(Problem(Cp(cp), ShardOrder::Block(1), length)).Balance(),
                (cp * n + 1.0) / (cp * n + cp), 1e-12);
    EXPECT_EQ(Plan(Problem(Cp(cp), ShardOrder::Contiguous(), length, "full")).Balance(), 1);
  }
}

TEST(RingSchedule, TheBalanceOfLargeSumsIsAShare) {
  EXPECT_EQ(Plan(Problem("cp=8", ShardOrder::Contiguous(), 922337200, "full")).Balance(), 1);
}

TEST(RingSchedule, ZigzagGivesAllRanksTheSameWorkInEachStep) {
  for (const char* mesh : {"cp=1", "cp=2", "cp=3", "cp=5", "cp=8", "o=2,i=2", "o=2,i=3"}) {
    const RingSchedule schedule = Plan(Problem(mesh, ShardOrder::Zigzag(), 1680));
    for (const RingStep& step : schedule.steps()) {
      for (const RingTurn& turn : step.turns) EXPECT_EQ(turn.work, step.turns[0].work);
    }
    EXPECT_EQ(schedule.Balance(), 1) << mesh;
  }
}

TEST(RingSchedule, ZigzagMeetsHalfBlocks) {
  const int64_t c = 8, cp = 4;
  const RingSchedule schedule = Plan(Problem("cp=4", ShardOrder::Zigzag(), 2 * cp * c));
  for (int s = 0; s < cp; ++s) {
    for (int ring_rank = 0; ring_rank < cp; ++ring_rank) {
      const RingTurn& turn = schedule.steps()[s].turns[ring_rank];
      EXPECT_EQ(turn.source, (ring_rank - s + cp) % cp);
      EXPECT_EQ(turn.block_case, s == 0 ? BlockCase::kDiagonal : BlockCase::kPartial);
      EXPECT_EQ(turn.work, s == 0 ? c * (2 * c + 1) : 2 * c * c);
    }
  }
}

TEST(RingSchedule, StripedIsADiagonalOrNearlyOne) {
  const RingSchedule schedule = Plan(Problem("cp=4", ShardOrder::Block(1), 32));
  for (const RingStep& step : schedule.steps()) {
    for (int ring_rank = 0; ring_rank < 4; ++ring_rank) {
      const RingTurn& turn = step.turns[ring_rank];
      const bool inclusive = turn.source <= ring_rank;
      EXPECT_EQ(turn.block_case, inclusive ? BlockCase::kDiagonal : BlockCase::kPartial);
      EXPECT_EQ(turn.work, inclusive ? 8 * 9 / 2 : 8 * 7 / 2);
    }
  }
}

// No block is empty: cp - 1 hops of KV each way and cp of its gradient, at the KV head count.
TEST(RingSchedule, BytesAreAsDerived) {
  for (int cp = 1; cp <= 8; ++cp) {
    for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
      RingProblem problem = Problem(Cp(cp), ShardOrder::Zigzag(), 840);
      problem.dtype = dtype;
      problem.q_length = problem.kv_length = 2 * cp * 10;
      const RingSchedule schedule = Plan(problem);
      const int64_t n = 20, e = SizeOf(dtype), eg = dtype == DType::kF64 ? 8 : 4;
      const int64_t block = 2 * e * 2 * n * 2 * 16, gradient = 2 * eg * 2 * n * 2 * 16;
      const int64_t hops_home = cp == 1 ? 0 : cp;
      for (int ring_rank = 0; ring_rank < cp; ++ring_rank) {
        EXPECT_EQ(schedule.ForwardBytes(ring_rank), block * (cp - 1));
        EXPECT_EQ(schedule.BackwardBytes(ring_rank), block * (cp - 1) + gradient * hops_home);
        if (cp == 1) continue;
        // Repeating KV heads for each query head would move 4 times as much.
        EXPECT_LT(schedule.ForwardBytes(ring_rank), 4 * block * (cp - 1));
        const RingLink link = schedule.Links()[ring_rank];
        EXPECT_EQ(link.from, ring_rank);
        EXPECT_EQ(link.to, (ring_rank + 1) % cp);
        EXPECT_EQ(link.forward_bytes, schedule.ForwardBytes(ring_rank));
        EXPECT_EQ(link.backward_bytes, schedule.BackwardBytes(ring_rank));
      }
    }
  }
}

TEST(RingSchedule, ADoubleRingCrossesOnceForEachRing) {
  for (const auto& [mesh, outer, inner] :
       {std::tuple("o=2,i=2", 2, 2), {"o=2,i=4", 2, 4}, {"o=4,i=2", 4, 2}, {"o=3,i=3", 3, 3}}) {
    const int cp = outer * inner;
    const RingSchedule schedule = Plan(Problem(mesh, ShardOrder::Zigzag(), 720));
    EXPECT_EQ(schedule.CrossingBlocks(), cp * (outer - 1)) << mesh;
    EXPECT_EQ(schedule.CrossingGradients(), cp * outer) << mesh;
    EXPECT_EQ(Messages(schedule).blocks, cp * (cp - 1)) << mesh;
    EXPECT_EQ(Messages(schedule).gradients, cp * cp) << mesh;
    for (int ring_rank = 0; ring_rank < cp; ++ring_rank) {
      EXPECT_EQ(schedule.ForwardBytes(ring_rank), schedule.BlockBytes(0) * (cp - 1));
      int crossing = 0;  // of this ring rank: W - 1, so that all links between rings share the load
      for (const RingStep& step : schedule.steps()) {
        for (const RingMessage& m : step.turns[ring_rank].sends) crossing += m.crosses;
      }
      EXPECT_EQ(crossing, outer - 1);
    }
  }
}

TEST(RingSchedule, TheOuterBlockLeavesWhenItsRingBegins) {
  const RingSchedule schedule = Plan(Problem("o=2,i=3", ShardOrder::Zigzag(), 720));
  for (int ring_rank = 0; ring_rank < 6; ++ring_rank) {
    EXPECT_EQ(schedule.steps()[0].turns[ring_rank].sends.size(), 2);  // inner and outer
    EXPECT_EQ(schedule.steps()[1].turns[ring_rank].sends.size(), 1);
    EXPECT_EQ(schedule.steps()[2].turns[ring_rank].sends.size(), 0);
  }
}

TEST(RingSchedule, CausalContiguousSendsNothingBackToTheFront) {
  const int cp = 4;
  const RingSchedule schedule = Plan(Problem("cp=4", ShardOrder::Contiguous(), 64));
  EXPECT_EQ(Messages(schedule).blocks, cp * (cp - 1) / 2);
  EXPECT_EQ(schedule.ForwardBytes(cp - 1), 0);
  // Each block but the last goes to the end, and its gradient the same way and home.
  EXPECT_EQ(Messages(schedule).gradients, cp * (cp - 1) / 2 + cp - 1);
  EXPECT_EQ(schedule.BackwardBytes(cp - 1), (cp - 1) * schedule.GradientBytes(0));
}

TEST(RingSchedule, WindowsSkipSteps) {
  const int64_t n = 16;
  for (int cp = 2; cp <= 8; ++cp) {
    // A window that reaches one block back: two steps, and one message from each rank but the last.
    for (const char* mask : {"window:2", "window:16", "window:17"}) {
      const RingSchedule near = Plan(Problem(Cp(cp), ShardOrder::Contiguous(), n * cp, mask));
      EXPECT_EQ(near.steps().size(), 2);
      EXPECT_EQ(Messages(near).blocks, cp - 1);
    }
    const RingSchedule own = Plan(Problem(Cp(cp), ShardOrder::Contiguous(), n * cp, "window:1"));
    EXPECT_EQ(own.steps().size(), 1);
    EXPECT_EQ(own.PeakBytes(), Plan(Problem(Cp(cp), ShardOrder::Contiguous(), n * cp, "window:1"))
                                   .BackwardMemory(0)
                                   .total());
  }
  EXPECT_EQ(Plan(Problem("cp=8", ShardOrder::Contiguous(), 128, "window:18")).steps().size(), 3);
  // Zigzag: neighbours on both sides of a rank, and nothing between them.
  const RingSchedule zigzag = Plan(Problem("cp=8", ShardOrder::Zigzag(), 128, "window:4"));
  ASSERT_EQ(zigzag.steps().size(), 3);
  EXPECT_EQ(zigzag.steps()[2].hop, 7);
  EXPECT_EQ(zigzag.ForwardBytes(3), 2 * zigzag.BlockBytes(3));
}

TEST(RingSchedule, DocumentsThatEndAtBlocksNeedNoRing) {
  const RingSchedule schedule =
      Plan(Problem("cp=4", ShardOrder::Contiguous(), 64, "documents:0,16,32,48"));
  EXPECT_EQ(schedule.steps().size(), 1);
  EXPECT_EQ(schedule.BackwardBytes(0), 0);
}

// The closed form, written anew: B batches, n positions, H heads, K kv heads of D, e bytes an
// element and g of a sum.
TEST(RingSchedule, PeakIsItsClosedForm) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    for (int cp = 1; cp <= 8; ++cp) {
      RingProblem problem = Problem(Cp(cp), ShardOrder::Zigzag(), 1680);
      problem.dtype = dtype;
      const RingSchedule schedule = Plan(problem);
      const int64_t n = 1680 / cp, batch = 2, heads = 8, kv_heads = 2, dim = 16;
      const int64_t e = SizeOf(dtype), g = std::max<int64_t>(e, 4);
      const int64_t q = batch * n * heads * dim, k = 2 * batch * n * kv_heads * dim;
      const int64_t rows = batch * n * heads;
      // One rank sums in the kernel, for the heads that share a kv head.
      const int64_t wide = g == e ? 0 : cp > 1 ? g * q : g * q / batch / kv_heads;
      const int64_t blocks = std::min(cp - 1, 2) * e * k, gradients = cp > 1 ? 2 * g * k : 0;
      EXPECT_EQ(schedule.ForwardMemory(0).total(),
                e * (2 * q + k) + g * rows * (cp > 1 ? 2 : 1) + wide + blocks);
      EXPECT_EQ(schedule.PeakBytes(),
                e * (4 * q + 2 * k) + 2 * g * rows + wide + blocks + gradients);
    }
  }
}

// A double ring holds a block more, which has come for the inner ring that begins next.
TEST(RingSchedule, BuffersOfDoubleRings) {
  const auto buffers = [](absl::string_view mesh) {
    const RingSchedule schedule = Plan(Problem(mesh, ShardOrder::Contiguous(), 96, "full"));
    return schedule.ForwardMemory(0).kv_buffers / schedule.BlockBytes(0);
  };
  EXPECT_EQ(buffers("node=2,cp=2"), 2);
  EXPECT_EQ(buffers("node=2,cp=4"), 3);
  EXPECT_EQ(buffers("node=3,cp=4"), 3);
}

// Without a message of gradients a rank sums nothing, and rounds at once.
TEST(RingSchedule, SumsThatHaveOneTermAreNotHeld) {
  const RingSchedule own = Plan(Problem("cp=4", ShardOrder::Contiguous(), 64, "window:1"));
  EXPECT_EQ(own.BlocksOf(0), 1);
  EXPECT_FALSE(own.SumsGradients(0));
  EXPECT_EQ(own.BackwardMemory(0).gradient_buffers, 0);
  // Rank 0 works on one block, whose gradient comes from others, too: it is held at home, wide.
  const RingSchedule causal = Plan(Problem("cp=2", ShardOrder::Contiguous(), 64));
  EXPECT_EQ(causal.BlocksOf(0), 1);
  EXPECT_TRUE(causal.SumsGradients(0));
  EXPECT_EQ(causal.BackwardMemory(0).gradient_buffers, causal.GradientBytes(0));
}

// What a rank would hold if it gathered all keys and values first.
int64_t GatheringPeak(const RingSchedule& schedule) {
  RingMemory memory = schedule.BackwardMemory(0);
  memory.kv_buffers = schedule.ring_size() * schedule.BlockBytes(0);
  memory.gradient_buffers = schedule.ring_size() * schedule.GradientBytes(0);
  return memory.total();
}

TEST(RingSchedule, PeakTimesRanksIsConstant) {
  int64_t least = 0, most = 0, least_gathering = 0, most_gathering = 0;
  for (int cp = 3; cp <= 8; ++cp) {
    const RingSchedule schedule = Plan(Problem(Cp(cp), ShardOrder::Zigzag(), 1000));
    const int64_t all = cp * schedule.PeakBytes(), gathering = cp * GatheringPeak(schedule);
    least = cp == 3 ? all : std::min(least, all);
    most = std::max(most, all);
    least_gathering = cp == 3 ? gathering : std::min(least_gathering, gathering);
    most_gathering = std::max(most_gathering, gathering);
  }
  EXPECT_LE(most, 1.15 * least);
  EXPECT_GT(most_gathering, 1.15 * least_gathering);  // memory that is not linear is found out
  for (int cp = 1; cp <= 2; ++cp) {
    EXPECT_LE(cp * Plan(Problem(Cp(cp), ShardOrder::Zigzag(), 1000)).PeakBytes(), most);
  }
}

TEST(RingSchedule, OtherAxesMakeGroupsThatActAlike) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2,cp=3,tp=2").value();
  RingProblem problem = Problem("cp=3", ShardOrder::Zigzag(), 48);
  const std::string expected = Plan(problem).ToString();
  problem.q = problem.kv = Layout::Parse(mesh, "[cp:zigzag]").value();
  problem.axes = {1};
  const std::string text = Plan(problem).ToString();
  EXPECT_EQ(text.substr(text.find("attention")), expected.substr(expected.find("attention")));
}

TEST(RingSchedule, Prints) {
  EXPECT_EQ(Plan(Problem("cp=2", ShardOrder::Contiguous(), 8)).ToString(),
            "mesh       [\"cp\"=2], ring of 2 over cp\n"
            "attention  causal, batch 2, 8 heads, 2 kv heads of 16, bf16\n"
            "sequence   8 as [cp]\n"
            "step 0     rank 0  kv 0  diagonal  10 pairs; sends kv 0 to 1, dkv 0 to 1\n"
            "step 0     rank 1  kv 1  diagonal  10 pairs\n"
            "step 1     rank 0  kv 1  empty     0 pairs\n"
            "step 1     rank 1  kv 0  full      16 pairs; sends dkv 0 to 0\n"
            "traffic    0 to 1: forward 1024 B, backward 3072 B\n"
            "traffic    1 to 0: forward 0 B, backward 2048 B\n"
            "sent       forward 1024 B, backward 3072 B, by the busiest rank\n"
            "balance    69.2%\n"
            "memory     22016 B on a rank at the peak\n");
}

TEST(RingSchedule, VerifyFindsWhatIsWrong) {
  using Turns = std::vector<RingTurn>;
  const std::pair<const char*, void (*)(Turns&)> mistakes[] = {
      {"works on what it lacks", [](Turns& t) { t[0].source = 1; }},
      {"the work is not", [](Turns& t) { ++t[0].work; }},
      {"the work is not", [](Turns& t) { t[0].block_case = BlockCase::kPartial; }},
      {"sent is not received", [](Turns& t) { t[1].receives.clear(); }},
      {"received is not sent", [](Turns& t) { t[0].sends.clear(); }},
      {"works on what it lacks", [](Turns& t) { t[0].sends.clear(), t[1].receives.clear(); }},
      {"sends what it lacks", [](Turns& t) { t[0].sends[0].block = t[1].receives[0].block = 2; }},
      {"bytes", [](Turns& t) { ++t[0].sends[0].bytes, ++t[1].receives[0].bytes; }},
  };
  for (const auto& [words, spoil] : mistakes) {
    RingSchedule schedule = Plan(Problem("cp=3", ShardOrder::Contiguous(), 24, "full"));
    spoil(const_cast<RingStep&>(schedule.steps()[0]).turns);
    const absl::Status status = schedule.Verify();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  }
  // A gradient that stays where step 1 leaves it. (At step 0 that is at home, and well.)
  for (int step = 0; step < 3; ++step) {
    RingSchedule schedule = Plan(Problem("cp=3", ShardOrder::Contiguous(), 24, "full"));
    for (RingTurn& turn : const_cast<RingStep&>(schedule.steps()[step]).turns) {
      turn.gradient_sends.clear();
      turn.gradient_receives.clear();
    }
    EXPECT_EQ(schedule.Verify().ok(), step == 0);
  }
}

struct Refusal {
  std::string words;
  RingProblem problem;
};

RingProblem With(RingProblem problem, void (*change)(RingProblem&)) {
  change(problem);
  return problem;
}

// A schedule has a turn for each pair of its ranks, so not every mesh may be a ring.
TEST(RingSchedule, RefusesARingThatIsTooLarge) {
  // The largest squares below and above 2^31, and 2^32.
  for (const char* mesh : {"cp=4097", "cp=46341", "cp=65536", "a=1024,b=1024"}) {
    EXPECT_THAT(
        RingSchedule::Create(Problem(mesh, ShardOrder::Contiguous(), 1 << 20)),
        StatusIs(kInvalid, ::testing::AllOf(HasSubstr("a ring of"), HasSubstr("take 4096"))))
        << mesh;
  }
}

TEST(RingSchedule, ALargeRingIsASmallPartOfALargeMesh) {
  RingProblem problem = Problem("cp=2", ShardOrder::Contiguous(), 64);
  const DeviceMesh mesh = DeviceMesh::Parse("dp=65536,cp=2").value();
  problem.q = problem.kv = Layout::Parse(mesh, "[cp]").value();
  problem.axes = {1};
  EXPECT_EQ(Plan(problem).ring_size(), 2);
}

TEST(RingSchedule, RefusesWithTheRemedy) {
  const RingProblem good = Problem("a=2,b=2", ShardOrder::Contiguous(), 64);
  const Refusal refusals[] = {
      {"take a divisor", With(good, [](RingProblem& p) { p.kv_heads = 3; })},
      {"take 1 or more", With(good, [](RingProblem& p) { p.head_dim = 0; })},
      {"take 0 or more", With(good, [](RingProblem& p) { p.batch = -1; })},
      {"make the tensors smaller", With(good, [](RingProblem& p) { p.batch = 1LL << 60; })},
      {"take f32", With(good, [](RingProblem& p) { p.dtype = DType::kI32; })},
      {"overlap", With(good,
                       [](RingProblem& p) {
                         p.axes = {0, 0};
                       })},
      {"no axes", With(good, [](RingProblem& p) { p.axes = {}; })},
      {"has no axis 2", With(good,
                             [](RingProblem& p) {
                               p.axes = {0, 2};
                             })},
      {"take it off the sequence", With(good, [](RingProblem& p) { p.axes = {0}; })},
      {"does not split it",
       With(good, [](RingProblem& p) { p.kv = Layout::Parse(p.q.mesh(), "[a]").value(); })},
      {"sequence alone",
       With(good, [](RingProblem& p) { p.q = Layout::Parse(p.q.mesh(), "[a,b] []").value(); })},
      {"redistribute one",
       With(good, [](RingProblem& p) { p.kv = Problem("c=4", ShardOrder::Contiguous(), 64).kv; })},
  };
  EXPECT_TRUE(RingSchedule::Create(good).ok());
  for (const Refusal& refusal : refusals) {
    EXPECT_THAT(RingSchedule::Create(refusal.problem),
                StatusIs(kInvalid, HasSubstr(refusal.words)));
  }
}

}  // namespace
}  // namespace dtensor
