// ApplyTensorParallel: the same losses and gradients as on one rank where there are fewer key/value
// heads than ranks, vocabularies that do not divide, and a tied embedding and head with sequence
// parallelism; and nothing moves for the copies of keys and values but their gradients.
#include "dtensor/parallel_plans/tensor_parallel.h"

#include <map>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MATCHER_P(Refuses, message, "") {
  return ExplainMatchResult(StatusIs(absl::StatusCode::kInvalidArgument, message), arg,
                            result_listener);
}

struct Case {
  std::string mesh;
  int64_t kv_heads = 4, vocab = kSmallVocab;
  bool tied = false, sequence_parallel = true;
};

TransformerConfig ConfigOf(const Case& c) {
  TransformerConfig config = SmallTransformer();
  config.kv_heads = c.kv_heads;
  config.vocab = c.vocab;
  config.tie_embeddings = c.tied;
  return config;
}

struct Outcome {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
  TrafficTable forward;
};

absl::Status Read(Transformer& model, Outcome& outcome) {
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!status.ok()) return;
    auto values = ToGlobal<double>(parameter.tensor.grad());
    status = values.status();
    if (status.ok()) outcome.gradients[path] = *std::move(values);
  });
  return status;
}

absl::StatusOr<Outcome> RunCase(Context& context, const Case& c) {
  constexpr int64_t kBatch = 4, kSequence = 8;
  DT_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  Transformer model(ConfigOf(c));
  model.SetDType(DType::kF64);
  DT_ASSIGN_OR_RETURN(mesh,
                      ApplyTensorParallel(model, context, mesh,
                                          {.sequence_parallel = c.sequence_parallel, .seed = 3}));
  std::vector<int32_t> ids, targets;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % c.vocab));
    targets.push_back(static_cast<int32_t>(i * 5 % c.vocab));
  }
  const Layout whole = Layout::Replicated(mesh, 2);
  const Dims shape = {kBatch, kSequence};
  context.communicator().ResetTraffic();
  const TensorOr logits = model(Distribute<int32_t>(context, whole, shape, ids));
  const TensorOr losses = CrossEntropy(logits, Distribute<int32_t>(context, whole, shape, targets));
  DT_ASSIGN_OR_RETURN(const auto loss, Mean(losses, {0, 1}));
  Outcome outcome;
  outcome.forward = context.communicator().traffic();
  DT_RETURN_IF_ERROR(Backward(loss));
  DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
  DT_ASSIGN_OR_RETURN(outcome.loss, Item(loss.Detach()));
  DT_RETURN_IF_ERROR(Read(model, outcome));
  return outcome;
}

Outcome RunOn(const Case& c) {
  Outcome outcome;
  DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(c.mesh)->size(), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(Outcome mine, RunCase(context, c));
    if (context.rank() == 0) outcome = std::move(mine);
    return absl::OkStatus();
  }));
  return outcome;
}

void ExpectAsOnOneRank(const Case& c) {
  Case one = c;
  one.mesh = "tp=1";
  const Outcome reference = RunOn(one), outcome = RunOn(c);
  EXPECT_NEAR(outcome.loss, reference.loss, 1e-12 * reference.loss) << c.mesh;
  ASSERT_EQ(outcome.gradients.size(), reference.gradients.size()) << c.mesh;
  for (const auto& [path, gradient] : reference.gradients) {
    EXPECT_LE(RelativeRms(outcome.gradients.at(path), gradient), 1e-12) << c.mesh << " " << path;
  }
}

TEST(ApplyTensorParallel, IsTheModelOfOneRank) {
  for (const bool sequence_parallel : {false, true}) {
    for (const std::string mesh : {"tp=2", "dp=2,tp=2", "cp=2,tp=2", "dp=2"}) {
      ExpectAsOnOneRank({.mesh = mesh, .sequence_parallel = sequence_parallel});
    }
  }
}

TEST(ApplyTensorParallel, HasFewerKeysThanRanks) {
  for (const int64_t kv_heads : {1, 2}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const std::string mesh : {"tp=4", "tp=8", "dp=2,tp=4", "tp=4,cp=2"}) {
        ExpectAsOnOneRank(
            {.mesh = mesh, .kv_heads = kv_heads, .sequence_parallel = sequence_parallel});
      }
    }
  }
}

TEST(ApplyTensorParallel, SplitsAnyVocabulary) {
  for (const int64_t vocab : {11, 13, 3}) {
    ExpectAsOnOneRank({.mesh = "tp=4", .vocab = vocab});
    ExpectAsOnOneRank({.mesh = "tp=4", .kv_heads = 2, .vocab = vocab, .tied = true});
  }
}

TEST(ApplyTensorParallel, TiesEmbeddingAndHeadWithSequenceParallelism) {
  for (const std::string mesh : {"tp=2", "tp=4", "dp=2,tp=2"}) {
    ExpectAsOnOneRank({.mesh = mesh, .tied = true});
  }
}

int64_t BytesOf(const TrafficTable& table) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : table) bytes += traffic.bytes;
  return bytes;
}

// Copies of keys and values cost no activations: forward moves what it moves with a head for each
// rank.
TEST(ApplyTensorParallel, MovesNoActivationsForCopiesOfKeys) {
  const Outcome copies = RunOn({.mesh = "tp=4", .kv_heads = 2});
  const Outcome own = RunOn({.mesh = "tp=4", .kv_heads = 4});
  EXPECT_GT(BytesOf(own.forward), 0);
  EXPECT_EQ(BytesOf(copies.forward), BytesOf(own.forward));
}

TEST(PlanTensorParallel, CutsTheAxisWhereThereAreFewerKeysThanRanks) {
  TransformerConfig config = SmallTransformer();
  config.kv_heads = 2;
  const auto cut = PlanTensorParallel(config, *DeviceMesh::Parse("dp=2,tp=8"));
  DT_ASSERT_OK(cut);
  EXPECT_EQ(cut->mesh,
            *DeviceMesh::Parse("dp=2,tp=8")->SplitAxis("tp", {{"tp_kv", 2}, {"tp_rep", 4}}));
  const auto whole = PlanTensorParallel(config, *DeviceMesh::Parse("dp=2,tp=2"));
  DT_ASSERT_OK(whole);
  EXPECT_EQ(whole->mesh, *DeviceMesh::Parse("dp=2,tp=2"));
  EXPECT_THAT(PlanTensorParallel(config, *DeviceMesh::Parse("tp=3")),
              Refuses(AllOf(HasSubstr("2 key/value heads"), HasSubstr("3 ranks"))));
}

TEST(PlanTensorParallel, SplitsNothingWithoutAnAxis) {
  const auto none = PlanTensorParallel(SmallTransformer(), *DeviceMesh::Parse("pp=2"));
  DT_ASSERT_OK(none);
  EXPECT_TRUE(none->plan.lines().empty());
}

TEST(ApplyTensorParallel, RefusesHeadsThatCannotBeSplit) {
  EXPECT_THAT(
      RunRanks(3,
               [](Context& context) -> absl::Status {
                 TransformerConfig config = SmallTransformer();
                 config.kv_heads = 8;
                 Transformer model(config);
                 return ApplyTensorParallel(model, context, *DeviceMesh::Parse("tp=3")).status();
               }),
      Refuses(AllOf(HasSubstr("q_proj"), HasSubstr("8 units of 2"))));
}

TEST(GetTpMesh, IsTheMeshOfTheAxisAlone) {
  const DeviceMesh mesh = *DeviceMesh::Parse("dp=2,tp=4");
  EXPECT_EQ(GetTpMesh(mesh), *DeviceMesh::Parse("tp=4"));
  EXPECT_EQ(GetTpMesh(mesh, "dp"), *DeviceMesh::Parse("dp=2"));
  EXPECT_EQ(GetTpMesh(*DeviceMesh::Parse("dp=2")), std::nullopt);
}

}  // namespace
}  // namespace dtensor
