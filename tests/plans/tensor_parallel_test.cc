// PlanTensorParallel: the same logits and gradients as on one rank with fewer key/value heads than
// ranks, with vocabularies that do not divide, and with a tied embedding and head under sequence
// parallelism. For the copies of keys and values, only their gradients move.
#include "dtensor/parallel_plans/tensor_parallel.h"

#include <optional>
#include <string>
#include <utility>

#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/plans/model_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TransformerConfig Config(int64_t kv_heads, int64_t vocab = kSmallVocab, bool tied = false) {
  TransformerConfig config = SmallTransformer();
  config.kv_heads = kv_heads;
  config.vocab = vocab;
  config.tie_embeddings = tied;
  return config;
}

ModelOutcome RunOn(const TransformerConfig& config, const ModelRun& run) {
  auto outcome = RunModel(Tested<Transformer>(config, "model.layers.*"), run);
  DT_EXPECT_OK(outcome) << run.mesh;
  return outcome.ok() ? *std::move(outcome) : ModelOutcome();
}

void ExpectAsOnOneRank(const TransformerConfig& config, const ModelRun& run) {
  const ModelOutcome one = RunOn(config, {}), outcome = RunOn(config, run);
  EXPECT_THAT(one.gradients, Not(IsEmpty()));
  EXPECT_EQ(Difference(outcome, one, {.error = 1e-12}), "") << run.mesh;
}

TEST(PlanTensorParallel, IsTheModelOfOneRank) {
  for (const bool sequence_parallel : {false, true}) {
    for (const std::string mesh : {"tp=2", "dp=2,tp=2", "cp=2,tp=2", "dp=2"}) {
      ExpectAsOnOneRank(Config(4), {.mesh = mesh, .sequence_parallel = sequence_parallel});
    }
  }
}

TEST(PlanTensorParallel, HasFewerKeysThanRanks) {
  for (const int64_t kv_heads : {1, 2}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const std::string mesh : {"tp=4", "tp=8", "dp=2,tp=4", "tp=4,cp=2"}) {
        ExpectAsOnOneRank(Config(kv_heads), {.mesh = mesh, .sequence_parallel = sequence_parallel});
      }
    }
  }
}

TEST(PlanTensorParallel, SplitsAnyVocabulary) {
  for (const int64_t vocab : {11, 13, 3}) {
    ExpectAsOnOneRank(Config(4, vocab), {.mesh = "tp=4"});
    ExpectAsOnOneRank(Config(2, vocab, /*tied=*/true), {.mesh = "tp=4"});
  }
}

TEST(PlanTensorParallel, TiesEmbeddingAndHeadWithSequenceParallelism) {
  for (const std::string mesh : {"tp=2", "tp=4", "dp=2,tp=2"}) {
    ExpectAsOnOneRank(Config(4, kSmallVocab, /*tied=*/true), {.mesh = mesh});
  }
}

int64_t BytesOf(const TrafficTable& table) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : table) bytes += traffic.bytes;
  return bytes;
}

// Copies of keys and values cost no activations: forward moves what it moves with a head for each
// rank.
TEST(PlanTensorParallel, MovesNoActivationsForCopiesOfKeys) {
  const ModelOutcome copies = RunOn(Config(2), {.mesh = "tp=4"});
  const ModelOutcome own = RunOn(Config(4), {.mesh = "tp=4"});
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
  EXPECT_THAT(PlanTensorParallel(config, *DeviceMesh::Parse("tp_kv=2,tp=4")),
              Refuses(AllOf(HasSubstr("PlanTensorParallel"), HasSubstr("a \"tp_kv\" already"))));
}

TEST(PlanTensorParallel, TakesAxesOfOtherNames) {
  TensorParallelOptions options;
  options.axis = "model";
  options.data_axis = "rows";
  options.context_axis = "ring";
  ParallelPlan plan = TensorParallelPlan("model", /*sequence_parallel=*/true);
  plan.Add({"", DataParallel("rows")});
  plan.Add(ContextParallelPlan("ring", "zigzag"));
  const DeviceMesh mesh = *DeviceMesh::Parse("rows=2,ring=2,model=2,dp=2");
  const auto planned = PlanTensorParallel(SmallTransformer(), mesh, options);
  DT_ASSERT_OK(planned);
  EXPECT_EQ(planned->plan, plan);
}

TEST(PlanTensorParallel, SplitsNothingWithoutAnAxis) {
  const auto none = PlanTensorParallel(SmallTransformer(), *DeviceMesh::Parse("xp=2"));
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

// An axis that the mesh lacks is not for this mesh; in a product, half of what is meant is there.
TEST(PlanTensorParallel, RefusesAProductOfAxesThatAreNotThere) {
  const DeviceMesh mesh = *DeviceMesh::Parse("a=2,tp=2");
  DT_EXPECT_OK(PlanTensorParallel(Config(4), mesh, {.data_axis = "b"}));
  EXPECT_THAT(PlanTensorParallel(Config(4), mesh, {.data_axis = "a*b"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("PlanTensorParallel"), HasSubstr("no axis \"b\""))));
}

}  // namespace
}  // namespace dtensor
