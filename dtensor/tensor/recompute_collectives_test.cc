// Recompute that keeps the results of collectives: the second run does not communicate, and gives
// the same bits.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/attention/attention.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/recompute.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kPositions = 6, kHeads = 2, kDim = 4, kFeatures = kHeads * kDim;
constexpr RecomputeOptions kKeep = {.keep_collectives = true};

int64_t Calls(Context& context) {
  int64_t calls = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
  context.communicator().ResetTraffic();
  return calls;
}

struct Leaves {
  DistributedTensor x, w;
};

absl::StatusOr<Leaves> MakeLeaves(Context& context, const DeviceMesh& mesh) {
  Leaves leaves;
  DT_ASSIGN_OR_RETURN(
      leaves.x, RandomNormal(context, mesh, {Shard(1)}, {1, kPositions, kFeatures}, {.seed = 1}));
  DT_ASSIGN_OR_RETURN(leaves.w,
                      RandomNormal(context, mesh, {Shard(1)}, {kFeatures, kFeatures}, {.seed = 2}));
  DT_RETURN_IF_ERROR(leaves.x.set_requires_grad(true));
  DT_RETURN_IF_ERROR(leaves.w.set_requires_grad(true));
  return leaves;
}

// A ring, a gather, a softmax along a dimension that is split, a dropout, and a reduce-scatter.
TensorsOr Block(const DistributedTensor& x, const DistributedTensor& w) {
  const TensorOr heads = Reshape(x, {1, kPositions, kHeads, kDim});
  const TensorOr mixed = Reshape(Attention(heads, heads, heads, {.plan = AttentionPlanKind::kRing}),
                                 {1, kPositions, kFeatures});
  DT_RETURN_IF_ERROR(mixed.status());
  DT_ASSIGN_OR_RETURN(const auto whole, mixed->Redistribute({Replicate()}));
  DT_ASSIGN_OR_RETURN(
      const auto product,
      MatMul(Dropout(Softmax(MatMul(whole, w)), 0.3, x.context().NextSeed()), Transpose(w, 0, 1)));
  DT_ASSIGN_OR_RETURN(auto y, product.Redistribute({Shard(1)}));
  return std::vector<DistributedTensor>{std::move(y)};
}

struct Outcome {
  int64_t forward = 0, backward = 0;  // calls
  std::vector<std::vector<float>> gradients;
};

using Call = std::function<TensorsOr(const Leaves&, const RecomputedFunction&)>;

// Two walks over one tape.
absl::StatusOr<Outcome> RunBlock(Context& context, const DeviceMesh& mesh, const Call& call) {
  DT_ASSIGN_OR_RETURN(const Leaves leaves, MakeLeaves(context, mesh));
  context.random() = {3, 0};
  Outcome outcome;
  Calls(context);
  const auto block = [&](absl::Span<const DistributedTensor> x) { return Block(x[0], leaves.w); };
  DT_ASSIGN_OR_RETURN(const auto y, call(leaves, block));
  outcome.forward = Calls(context);
  const TensorOr loss = Sum(Mul(y[0], y[0]), {0, 1, 2});
  DT_RETURN_IF_ERROR(Backward(loss, {.retain_graph = true}));
  outcome.backward = Calls(context);
  DT_RETURN_IF_ERROR(Backward(loss));
  EXPECT_EQ(Calls(context), outcome.backward);
  DT_RETURN_IF_ERROR(ReduceGradients({leaves.x, leaves.w}));
  for (const DistributedTensor& leaf : {leaves.x, leaves.w}) {
    DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(leaf.grad()));
    outcome.gradients.push_back(std::move(values));
  }
  DT_ASSIGN_OR_RETURN(auto values, ToGlobal<float>(y[0].Detach()));
  outcome.gradients.push_back(std::move(values));
  return outcome;
}

void ExpectOn(const Call& call, bool communicates_again) {
  for (const std::string text : {"tp=1", "tp=2", "tp=3"}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) -> absl::Status {
      const Call plain = [](const Leaves& leaves, const RecomputedFunction& block) {
        return block({leaves.x});
      };
      DT_ASSIGN_OR_RETURN(const Outcome want, RunBlock(context, mesh, plain));
      DT_ASSIGN_OR_RETURN(const Outcome got, RunBlock(context, mesh, call));
      EXPECT_EQ(got.gradients, want.gradients) << text;
      EXPECT_EQ(got.forward, want.forward) << text;
      EXPECT_EQ(want.forward > 3, mesh.size() > 1);  // all four communicate
      EXPECT_EQ(got.backward, want.backward + (communicates_again ? want.forward : 0)) << text;
      return absl::OkStatus();
    }));
  }
}

TEST(RecomputeCollectives, ThatAreNotKeptAreMadeAgain) {
  ExpectOn([](const Leaves& leaves,
              const RecomputedFunction& block) { return Recompute({leaves.x}, block); },
           /*communicates_again=*/true);
}

TEST(RecomputeCollectives, ThatAreKeptAreNot) {
  ExpectOn([](const Leaves& leaves,
              const RecomputedFunction& block) { return Recompute({leaves.x}, block, kKeep); },
           /*communicates_again=*/false);
}

// The inner one runs for the first time when the outer one runs again: with what that has kept.
TEST(RecomputeCollectives, AreKeptByOneInAnother) {
  ExpectOn(
      [](const Leaves& leaves, const RecomputedFunction& block) {
        const auto inner = [block](absl::Span<const DistributedTensor> x) {
          return Recompute(x, block, kKeep);
        };
        return Recompute({leaves.x}, inner, kKeep);
      },
      /*communicates_again=*/false);
}

TEST(RecomputeCollectives, OfTheOuterFunctionAreNotTheInnerOnes) {
  ExpectOn(
      [](const Leaves& leaves, const RecomputedFunction& block) {
        const auto inner = [block](absl::Span<const DistributedTensor> x) {
          return Recompute(x, block);
        };
        return Recompute({leaves.x}, inner, kKeep);
      },
      /*communicates_again=*/true);
}

// What was kept is a value: it is none of the function's business who writes to the result.
TEST(RecomputeCollectives, AWriteToAResultIsNotSeenInWhatIsKept) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const Leaves leaves, MakeLeaves(context, mesh));
    DistributedTensor whole;
    const auto fn = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
      DT_ASSIGN_OR_RETURN(const auto gathered, x[0].Redistribute({Replicate()}));
      whole = gathered.Detach();
      DT_ASSIGN_OR_RETURN(auto y, Scale(gathered, 2));
      return std::vector<DistributedTensor>{std::move(y)};
    };
    DT_ASSIGN_OR_RETURN(const auto y, Recompute({leaves.x}, fn, kKeep));
    DT_ASSIGN_OR_RETURN(const auto before, ToGlobal<float>(whole));
    DT_RETURN_IF_ERROR(BeforeWrite(whole));
    whole.local().data<float>()[0] += 1;
    DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0, 1, 2})));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(before));  // of the second run
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
