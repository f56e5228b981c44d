// The plans that carry out attention: what each moves, that a run without data predicts it, which
// plan is chosen, and what is refused.
#include <cmath>
#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/attention_cases.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {
namespace {

using ::testing::HasSubstr;

int64_t Bytes(const TrafficTable& table, absl::string_view axes, CollectiveKind kind) {
  const auto it = table.find({std::string(axes), kind});
  return it == table.end() ? 0 : it->second.bytes;
}

// What moves, in bytes that all ranks receive, is what the textbook says.
TEST(Attention, MovesWhatItsMethodSays) {
  Case c = {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
  c.options.mask = AttentionMask::Full();
  c.shapes.s = c.shapes.t = 16;
  const int64_t hop = 2 * 8 * NumElements(c.shapes.kv());  // of all ranks; f64
  {
    TrafficTable traffic;
    c.options.plan = AttentionPlanKind::kRing;
    RunOn(c, &traffic);
    // Keys 3 hops forward and 3 backward, gradients 4.
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kPermute), hop * (3 + 3 + 4));
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllGather), 0);
  }
  {
    TrafficTable traffic;
    c.options.plan = AttentionPlanKind::kGather;
    RunOn(c, &traffic);
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllGather), hop * 3);
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kPermute), 0);
  }
  {
    TrafficTable traffic;
    c.options.plan = AttentionPlanKind::kAllToAll;
    RunOn(c, &traffic);
    // q, k, v and o; lse, since it is asked for; the gradient of o. Those of leaves stay.
    const int64_t queries = 8 * NumElements(c.shapes.q());
    const int64_t lse = 8 * c.shapes.batch * c.shapes.heads * c.shapes.s;
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllToAll), (3 * queries + hop + lse) * 3 / 4);
  }
}

// Queries whole, keys sharded: one gather of each rank's o and lse, and no keys.
TEST(Attention, DecodingMovesNoKeys) {
  Case c = {"cp=4", "[] [] [] []", "[] [cp] [] []", {}};
  c.shapes.s = 1;
  c.shapes.t = 64;
  c.dtype = DType::kBF16;
  TrafficTable traffic;
  DT_ASSERT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, c.options).status());
    if (context.rank() == 0) traffic = context.communicator().traffic();
    return absl::OkStatus();
  }));
  ASSERT_EQ(traffic.size(), 1);
  EXPECT_EQ(traffic.begin()->second.calls, 1);
  EXPECT_EQ(traffic.begin()->second.bytes, 3 * 4 * c.shapes.batch * c.shapes.heads * (4 + 1));
}

// The merge of the parts moves little, and nothing could take its place.
TEST(Attention, DecodingIsNotRefusedForLackOfMemory) {
  Case c = {"cp=2", "[] [] [] []", "[] [cp] [] []", {}};
  c.shapes.s = 1;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    DT_RETURN_IF_ERROR(context.set_redistribution_options({.max_extra_bytes = 1}));
    return Attention(in.q, in.k, in.v, c.options).status();
  }));
}

TEST(Attention, PredictionIsWhatTheRunCounts) {
  for (const Placed& p : kPlaced) {
    for (const AttentionPlanKind kind :
         {AttentionPlanKind::kRing, AttentionPlanKind::kGather, AttentionPlanKind::kAutomatic}) {
      ExpectPredicted({p.mesh, p.q, p.kv, {.plan = kind}});
    }
  }
}

// The gradients of streamed keys lie as the keys do, not Partial.
TEST(Attention, LayoutsOfResultsAndGradients) {
  for (const AttentionPlanKind kind : {AttentionPlanKind::kRing, AttentionPlanKind::kAllToAll}) {
    const Case c = {"cp=2", "[] [cp:zigzag] [] []", "[] [cp] [] []", {.plan = kind}};
    DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      DT_ASSIGN_OR_RETURN(const AttentionResults results, RunCase(context, c, in));
      EXPECT_EQ(results.o.layout(), in.q.layout());
      EXPECT_EQ(results.lse.layout().ToString(), "[] [] [cp:zigzag]");
      if (kind == AttentionPlanKind::kRing) {
        EXPECT_EQ(in.k.grad().layout(), in.k.layout());
      }
      return absl::OkStatus();
    }));
  }
}

// The Context's links and cap decide, and calls that were decided before are decided again.
TEST(Attention, AutomaticFollowsTheOptionsOfTheContext) {
  Case c = {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
  c.shapes.kv_heads = 8;
  c.shapes.s = c.shapes.t = 16;
  DT_ASSERT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    const auto calls = [&](CollectiveKind kind) -> absl::StatusOr<int64_t> {
      context.communicator().ResetTraffic();
      const NoGrad no_grad(context);
      DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, c.options).status());
      const auto& traffic = context.communicator().traffic();
      const auto it = traffic.find({"cp", kind});
      return it == traffic.end() ? 0 : it->second.calls;
    };
    RedistributionOptions options;
    DT_ASSIGN_OR_RETURN(options.links, CostModel::Parse("link * 0 1000\nmultiply 0.001"));
    DT_RETURN_IF_ERROR(context.set_redistribution_options(options));
    DT_ASSIGN_OR_RETURN(const int64_t rings, calls(CollectiveKind::kPermute));
    EXPECT_GT(rings, 0);
    DT_ASSIGN_OR_RETURN(options.links, CostModel::Parse("link * 0 0.001\nmultiply 1000"));
    DT_RETURN_IF_ERROR(context.set_redistribution_options(options));
    DT_ASSIGN_OR_RETURN(const int64_t exchanges, calls(CollectiveKind::kAllToAll));
    EXPECT_GT(exchanges, 0);
    return absl::OkStatus();
  }));
}

// What moves to the heads is a question of all-to-all alone: no error, and no other decision.
TEST(Attention, OtherPlansDoNotLookAtAllToAll) {
  for (const AttentionPlanKind kind :
       {AttentionPlanKind::kRing, AttentionPlanKind::kGather, AttentionPlanKind::kAutomatic}) {
    const Case c = {"cp=2", "[] [cp] [] []", "[] [cp] [] []", {.plan = kind}};
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      AttentionOptions options = c.options;
      DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, options).status());
      const size_t decisions = context.cache_sizes().decisions;
      for (const char* axes : {"cp", "up"}) {
        options.all_to_all = axes;
        DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, options).status());
      }
      EXPECT_EQ(context.cache_sizes().decisions, decisions);
      return absl::OkStatus();
    }));
  }
}

TEST(Attention, RefusesWithARemedy) {
  Case c = {"cp=3", "[] [cp] [] []", "[] [cp] [] []", {}};
  const auto error = [&](const AttentionOptions& options) {
    std::string message;
    DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      const absl::Status status = Attention(in.q, in.k, in.v, options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      if (context.rank() == 0) message = std::string(status.message());
      // The Context still works.
      return Attention(in.q, in.k, in.v, {}).status();
    }));
    return message;
  };
  EXPECT_THAT(error({.plan = AttentionPlanKind::kAllToAll}),
              HasSubstr("3 ranks, with those that split the heads already, cannot share 4 key "
                        "heads evenly; name fewer axes, or take plan ring"));
  EXPECT_THAT(error({.plan = AttentionPlanKind::kAllToAll, .all_to_all = "dp"}),
              HasSubstr("all_to_all"));
  EXPECT_THAT(error({.dropout = 1}), HasSubstr("no probability below 1"));
  EXPECT_THAT(error({.scale = NAN}), HasSubstr("take a finite number"));
  c.shapes.kv_heads = 3;
  const auto bad_heads = RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    return Attention(in.q, in.k, in.v, {}).status();
  });
  EXPECT_THAT(bad_heads.message(), HasSubstr("choose hq as a multiple of hkv"));
}

// Each reason has its own remedy.
TEST(Attention, RanksOfARingThatDisagreeGetAnError) {
  Case c = {"cp=2", "[] [cp] [] []", "[] [cp] [] []", {.plan = AttentionPlanKind::kRing}};
  for (double AttentionOptions::*option : {&AttentionOptions::scale, &AttentionOptions::dropout}) {
    const absl::Status status = RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      AttentionOptions options = c.options;
      options.*option = 0.25 + 0.25 * context.rank();
      const absl::Status mine = Attention(in.q, in.k, in.v, options).status();
      EXPECT_FALSE(mine.ok());
      return mine;
    });
    EXPECT_THAT(status.message(), HasSubstr("Attention"));
  }
}

TEST(Attention, SaysWhyThereIsNoAllToAll) {
  const auto why = [](const Case& c) { return std::string(TryOn(c).status().message()); };
  Case c = {"cp=2,tp=2", "[] [cp] [tp] []", "[] [cp] [tp] []", {}};
  c.options.plan = AttentionPlanKind::kAllToAll;
  c.options.all_to_all = "tp";
  EXPECT_THAT(why(c), HasSubstr("\"tp\" does not split both sequences; name axes that do: cp"));
  c.options.all_to_all = "cp";
  c.shapes.kv_heads = 2;
  EXPECT_THAT(why(c), HasSubstr("4 ranks, with those that split the heads already, cannot"));
  c.shapes.kv_heads = 1;
  EXPECT_THAT(why(c), HasSubstr("the heads of q and of k are split by unlike axes; take plan"));
}

}  // namespace
}  // namespace dtensor::attention_testing
