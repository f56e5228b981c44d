// Strictness and notices: implicit moves by dispatch are refused above a bound, equally on all
// ranks and before a byte moves. Each decision is reported once.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtensor/attention/attention.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/styles.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

DeviceMesh Tp2() { return *DeviceMesh::Parse("tp=2"); }

TensorOr Zeros(Context& context, absl::Span<const Placement> placements, const Dims& shape) {
  return Full(context, Tp2(), placements, shape, DType::kF32, 0);
}

absl::Status Strict(int64_t most, const std::function<absl::Status(Context&)>& program) {
  ContextOptions contexts;
  contexts.max_implicit_bytes = most;
  return RunRanks(2, program, {}, contexts);
}

// w, [8, 6] in two halves, is gathered: 96 bytes for each rank.
TensorOr Gathering(Context& context) {
  return MatMul(Zeros(context, {Shard(0)}, {64, 8}), Zeros(context, {Shard(0)}, {8, 6}));
}

TensorOr PartialOne(Context& context) {
  DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(context.device(), DType::kF32, {4, 8}));
  return FromLocal(context, Tp2(), {Partial()}, {4, 8}, std::move(term));
}

TEST(MaxImplicitBytes, RefusesMoreAndTheContextLivesOn) {
  DT_EXPECT_OK(Strict(95, [](Context& context) -> absl::Status {
    for (int i = 0; i < 2; ++i) {  // refused the second time as well
      const absl::Status status = Gathering(context).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  AllOf(StartsWith("MatMul: operand 1, on [\"tp\"=2], goes by itself: "),
                        HasSubstr("[tp] [] -> [] [], [8, 6] f32: all-gather(tp) 96 B"),
                        HasSubstr("a rank receives 96 bytes, and max_implicit_bytes is 95"),
                        HasSubstr("Redistribute() it there")));
    }
    EXPECT_TRUE(context.communicator().traffic().empty()) << "nothing has moved";
    const TensorOr w = Zeros(context, {Shard(0)}, {8, 6});
    const TensorOr all = w->Redistribute({Replicate()});  // asked for
    return MatMul(Zeros(context, {Shard(0)}, {4, 8}), all).status();
  }));
}

TEST(MaxImplicitBytes, AllowsAsMuchAndWithoutOneAll) {
  DT_EXPECT_OK(Strict(96, [](Context& context) { return Gathering(context).status(); }));
  DT_EXPECT_OK(Strict(-1, [](Context& context) { return Gathering(context).status(); }));
  DT_EXPECT_OK(Strict(0, [](Context& context) -> absl::Status {
    // Replicated to sharded is a cut: nothing is received.
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8}),
                   y = Zeros(context, {Replicate()}, {4, 8});
    return Add(x, y).status();
  }));
}

// An operator's moves count together, and all are named.
TEST(MaxImplicitBytes, AllThatOneOperatorMovesCounts) {
  const auto both = [](Context& context) {  // each is reduced: 128 bytes
    return Maximum(PartialOne(context), PartialOne(context)).status();
  };
  DT_EXPECT_OK(Strict(256, both));
  DT_EXPECT_OK(Strict(255, [&](Context& context) -> absl::Status {
    const absl::Status status = both(context);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("Maximum: operand 0, on [\"tp\"=2], goes by itself: "),
                      HasSubstr("128 B; operand 1, on [\"tp\"=2], goes by itself: "),
                      HasSubstr("; a rank receives up to 256 bytes, and max_implicit_bytes is 255"),
                      HasSubstr("Redistribute() it there")));
    EXPECT_TRUE(context.communicator().traffic().empty()) << "nothing has moved";
    return absl::OkStatus();
  }));
}

// The bound holds for the plans of each call's options, not of those with which the first was made.
TEST(MaxImplicitBytes, OtherOptionsMoveOtherwise) {
  ContextOptions contexts;
  contexts.max_implicit_bytes = 4 * 8 * 4 * 2;  // an all-reduce in two rounds is below it
  const auto program = [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=8"));
    DT_ASSIGN_OR_RETURN(Tensor term, Tensor::Empty(context.device(), DType::kF32, {4, 8}));
    const TensorOr partial = FromLocal(context, mesh, {Partial()}, {4, 8}, std::move(term));
    DT_EXPECT_OK(Tanh(partial));
    DT_RETURN_IF_ERROR(
        context.set_redistribution_options({.objective = RedistributionObjective::kLatency}));
    EXPECT_EQ(Tanh(partial).status().code(), absl::StatusCode::kInvalidArgument)
        << "in one round it receives all terms";
    DT_RETURN_IF_ERROR(context.set_redistribution_options({}));
    return Tanh(partial).status();
  };
  DT_EXPECT_OK(RunRanks(8, program, {}, contexts));
}

// Uneven shards: the ranks receive unlike numbers of bytes, and agree all the same.
TEST(MaxImplicitBytes, TheBusiestRankCounts) {
  for (const int64_t most : {23, 47, 71, 72}) {
    DT_EXPECT_OK(Strict(most, [&](Context& context) -> absl::Status {
      const TensorOr y =
          MatMul(Zeros(context, {Shard(0)}, {64, 5}), Zeros(context, {Shard(0)}, {5, 6}));
      EXPECT_EQ(y.ok(), most >= 72) << "rank 1 lacks 3 rows of 24 bytes, rank 0 has 2 to get";
      return absl::OkStatus();
    }));
  }
}

// What a step on many ranks would do is known before there are so many.
TEST(MaxImplicitBytes, OfASimulatedRank) {
  const auto program = [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1000"));
    const TensorOr x = Full(context, mesh, {Shard(0)}, {64'000, 1000}, DType::kF32, 0);
    const TensorOr w = Full(context, mesh, {Shard(0)}, {1000, 8}, DType::kF32, 0);
    return MatMul(x, w).status();
  };
  SimulationOptions strict;
  strict.contexts.max_implicit_bytes = 999 * 32 - 1;
  const absl::Status status = Simulate(7, 1000, program, strict);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a rank receives 31968 bytes"));
  strict.contexts.max_implicit_bytes = 999 * 32;
  DT_EXPECT_OK(Simulate(7, 1000, program, strict));
  DT_EXPECT_OK(Simulate(7, 1000, program));
}

class Activation : public Module {
 protected:
  TensorOr Forward(const DistributedTensor& x) override { return Silu(x); }
};

TEST(MaxImplicitBytes, NamesTheModule) {
  DT_EXPECT_OK(Strict(0, [](Context& context) -> absl::Status {
    Sequential model;
    model.Append(std::make_unique<Activation>());
    DT_RETURN_IF_ERROR(model.SetPaths());
    const TensorOr partial = PartialOne(context);
    EXPECT_THAT(std::string(Silu(partial).status().message()), StartsWith("Silu: operand 0, on "));
    EXPECT_THAT(std::string(model(partial).status().message()),
                StartsWith("0: Silu: operand 0, on "));
    return absl::OkStatus();
  }));
}

// Edges of a plan, reductions of gradients and what Backward does are asked for.
TEST(MaxImplicitBytes, PlansAndGradientsGoOn) {
  DT_EXPECT_OK(Strict(0, [](Context& context) -> absl::Status {
    Sequential model;
    model.Append(std::make_unique<LinearLayer>(8, 6, 0.1));
    model.Append(std::make_unique<LinearLayer>(6, 8, 0.1));
    const ParallelPlan plan({{"0", Colwise("tp")}, {"1", Rowwise("tp", Shard(0))}});
    DT_RETURN_IF_ERROR(plan.Apply(model, context, Tp2(), {}));
    const TensorOr loss = Mean(model(Zeros(context, {Shard(0)}, {4, 8})), {0, 1});  // Partial
    DT_RETURN_IF_ERROR(loss.status());
    const TensorOr whole = loss->Redistribute({Replicate()});
    DT_RETURN_IF_ERROR(Backward(whole));
    EXPECT_GT(context.communicator().traffic().size(), 2u);
    return ReduceGradients(model.Parameters());
  }));
}

// An attention whose plan is pinned was told to move.
TEST(MaxImplicitBytes, APinnedAttentionPlanIsAskedFor) {
  DT_EXPECT_OK(Strict(0, [&](Context& context) -> absl::Status {
    const TensorOr q = Zeros(context, {Shard(1)}, {1, 8, 2, 4});
    AttentionOptions options;
    options.plan = AttentionPlanKind::kAllToAll;
    DT_RETURN_IF_ERROR(Attention(q, q, q, options).status());
    EXPECT_FALSE(context.communicator().traffic().empty());
    const TensorOr k = Zeros(context, {Shard(3)}, {1, 8, 2, 4});  // nobody asked for that
    EXPECT_THAT(std::string(Attention(k, k, k, {}).status().message()),
                StartsWith("Attention: operand 0"));
    return absl::OkStatus();
  }));
}

TEST(Notice, OneLineForEachDecisionOnOneRank) {
  std::mutex mutex;
  std::vector<std::string> lines;
  ContextOptions contexts;
  contexts.notice = [&](absl::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  DT_ASSERT_OK(RunRanks(
      2,
      [](Context& context) -> absl::Status {
        for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(Gathering(context).status());
        const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
        DT_RETURN_IF_ERROR(Silu(x).status());
        Sequential model;
        model.Append(std::make_unique<Activation>());
        DT_RETURN_IF_ERROR(model.SetPaths());
        return model(PartialOne(context)).status();
      },
      {}, contexts));
  EXPECT_THAT(lines,
              ElementsAre(AllOf(StartsWith("MatMul: operand 1, on [\"tp\"=2], goes by itself: "),
                                HasSubstr("all-gather(tp) 96 B; Redistribute() it")),
                          StartsWith("Silu at 0: operand 0, on ")));
  for (const std::string& line : lines) EXPECT_THAT(line, ::testing::Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace dtensor
