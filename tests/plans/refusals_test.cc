// Mistakes in a plan are errors when it is applied, the same on every rank, that name what is wrong
// and the remedy. They leave the model as it was and the Context usable: a right plan that is
// applied afterwards gives the same result as on a fresh model.
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/nn/containers.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/testing/shared_models.h"
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

struct Mistake {
  std::string plan;
  std::vector<std::string> named;  // what the error has to say
};

MATCHER_P(RefusesNaming, named, "") {
  const absl::Status& status = arg;
  for (const std::string& one : named) {
    if (!absl::StrContains(status.message(), one)) {
      *result_listener << status.ToString() << "\nwhich lacks: " << one;
      return false;
    }
  }
  return absl::IsInvalidArgument(status);
}
auto Refuses(std::vector<std::string> named) { return RefusesNaming(std::move(named)); }

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(i * 7 % kSmallVocab));
  return ids;
}

absl::StatusOr<double> LossOf(Context& context, const DeviceMesh& mesh, Module& model) {
  const TensorOr ids = Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {4, 8}, Ids(32));
  DT_ASSIGN_OR_RETURN(const auto loss, Mean(CrossEntropy(model(ids), ids), {0, 1}));
  return Item(loss.Detach());
}

void ExpectUntouched(Module& model, const std::string& after) {
  model.VisitModules([&](const std::string& path, Module& module) {
    EXPECT_TRUE(module.edges().empty()) << path << " after " << after;
    EXPECT_EQ(module.gather_group(), nullptr) << path << " after " << after;
    if (module.attention() == nullptr) return;
    EXPECT_EQ(module.attention()->plan, AttentionOptions().plan) << path << " after " << after;
  });
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    EXPECT_FALSE(parameter.tensor.defined()) << path << " after " << after;
  });
}

const Mistake kMistakes[] = {
    // No such module, with the nearest.
    {"{\"model.layers.*.self_attn.q_pro\", Colwise(\"tp\")}",
     {"{\"model.layers.*.self_attn.q_pro\", Colwise(\"tp\")}", "matches no module",
      "\"model.layers.0.self_attn.q_proj\""}},
    {"{\"lm_head\", Colwise(\"tp\")}\n{\"layers.*\", SequenceParallel(\"tp\")}",
     {"{\"layers.*\", SequenceParallel(\"tp\")}", "matches no module"}},
    // No such axis, with those there are.
    {"{\"lm_head\", Colwise(\"model\")}", {"Colwise(\"model\")", "\"model\"", "\"tp\"", "\"dp\""}},
    {"{\"\", FullyShard(\"fsdp\")}", {"FullyShard(\"fsdp\")", "\"fsdp\"", "\"dp\""}},
    // A module by two lines, with one style and with two.
    {"{\"lm_head\", Colwise(\"tp\")}\n{\"lm_head\", Colwise(\"tp\")}",
     {"module \"lm_head\" and axis \"tp\"", "already", "keep one"}},
    {"{\"model.layers.0.mlp.up_proj\", Colwise(\"tp\")}\n"
     "{\"model.layers.*.mlp.*\", Rowwise(\"tp\")}",
     {"module \"model.layers.0.mlp.up_proj\" and axis \"tp\"",
      "{\"model.layers.0.mlp.up_proj\", Colwise(\"tp\")}", "keep one"}},
    // One dimension split by two axes in ways that do not divide.
    {"{\"model.layers.*.self_attn.k_proj\", Colwise(\"tp\")}\n"
     "{\"model.layers.*.self_attn.k_proj\", Colwise(\"dp\")}\n"
     "{\"model.layers.*.mlp.up_proj\", Colwise(\"odd\")}",
     {"Colwise(\"odd\")", "\"odd\""}},
    // Both sharded between uses and split by one axis.
    {"{\"lm_head\", Colwise(\"tp\")}\n{\"\", FullyShard(\"tp\")}",
     {"FullyShard(\"tp\")", "lm_head.weight", "split by \"tp\" already"}},
    {"{\"lm_head\", FullyShard(\"dp\")}\n{\"lm_head\", FullyShard(\"tp\")}",
     {"is a unit of the line", "FullyShard(\"dp\")", "over one axis, or a group"}},
    {"{\"\", FullyShard(\"dp\", 0)}", {"FullyShard(\"dp\", 0)", "no level 0", "1", "2", "3"}},
    // What has no features, and what is no loss.
    {"{\"model.norm\", Colwise(\"tp\")}",
     {"{\"model.norm\", Colwise(\"tp\")}", "weight", "SequenceParallel"}},
    // Placements that no activation can have.
    {"{\"lm_head\", Edges(\"tp\", in P(sum))}", {"Edges(\"tp\"", "P(sum)", "use R or S(d)"}},
    {"{\"lm_head\", Rowwise(\"tp\", out P(sum))}", {"Rowwise(\"tp\"", "use R or S(d)"}},
    // Operands that a module lacks.
    {"{\"lm_head\", PrepareInput(\"tp\", R, R)}", {"PrepareInput", "2 placements", "operands x"}},
    {"{\"lm_head\", PrepareOutput(\"tp\", logits S(2))}", {"no logits", "results y"}},
    {"{\"\", ContextParallel(\"tp\", \"spiral\")}", {"spiral", "zigzag"}},
    {"{\"\", ContextParallel(\"tp\", \"double_ring\")}", {"double_ring", "tp"}},
};

TEST(PlanMistakes, AreNamedAndLeaveTheModelAsItWas) {
  double fresh_loss = 0;
  const auto program = [&](bool mistakes, double& loss) {
    return [&loss, mistakes](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
      Transformer model(SmallTransformer());
      for (size_t i = 0; mistakes && i < std::size(kMistakes); ++i) {
        DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(kMistakes[i].plan));
        EXPECT_THAT(plan.Apply(model, context, mesh, {.seed = 3}), Refuses(kMistakes[i].named));
        ExpectUntouched(model, kMistakes[i].plan);
      }
      DT_RETURN_IF_ERROR(PlanFor(mesh, true).Apply(model, context, mesh, {.seed = 3}));
      DT_ASSIGN_OR_RETURN(const double mine, LossOf(context, mesh, model));
      if (context.rank() == 0) loss = mine;
      return absl::OkStatus();
    };
  };
  double loss = 0;
  DT_EXPECT_OK(RunRanks(4, program(false, fresh_loss)));
  DT_EXPECT_OK(RunRanks(4, program(true, loss)));
  EXPECT_EQ(loss, fresh_loss);
  EXPECT_GT(loss, 0);
}

TEST(PlanMistakes, HeadsThatCannotBeSplitNameTheHeads) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=3"));
    Transformer model(SmallTransformer());
    const ParallelPlan plan({{"model.layers.*.self_attn.q_proj", Colwise("tp")}});
    EXPECT_THAT(plan.Apply(model, context, mesh, {}),
                Refuses({"dimension 0 of model.layers.0.self_attn.q_proj.weight, 16 (4 units of 4)",
                         "\"tp\" of size 3", "divide 4", "allow uneven"}));
    ExpectUntouched(model, "heads");
    EXPECT_THAT(ApplyTensorParallel(model, context, mesh).status(),
                Refuses({"cannot be split evenly", "\"tp\" of size 3"}));
    ExpectUntouched(model, "heads");
    return plan.Apply(model, context, mesh, {.allow_uneven = true});
  }));
}

// A parameter of two modules, which would have it split along two dimensions.
TEST(PlanMistakes, AParameterThatIsPlacedTwiceNamesBothPlaces) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    TiedModel model(12, 8, /*tied=*/true);
    const ParallelPlan wrong({{"embed", Colwise("tp")}, {"head", Colwise("tp")}});
    EXPECT_THAT(wrong.Apply(model, context, mesh, {}),
                Refuses({"head.weight", "embed.weight", "S(0)", "S(1)", "{\"embed\", Colwise",
                         "styles that agree"}));
    ExpectUntouched(model, "two places");
    return ParallelPlan({{"embed", Rowwise("tp")}, {"head", Colwise("tp")}})
        .Apply(model, context, mesh, {});
  }));
}

// The second of three layers is given values that do not fit.
TEST(PlanMistakes, FirstValuesThatDoNotFitLeaveNoParameterBehind) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    Sequential model;
    for (int i = 0; i < 3; ++i) model.Append(std::make_unique<LinearLayer>(2, 2, 0.5));
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      if (path == "1.weight") parameter.init = ParameterInit::Values({1, 2, 3});
    });
    const ParallelPlan plan({{"", FullyShard("dp")}});
    EXPECT_THAT(plan.Apply(model, context, mesh, {}),
                Refuses({"1.weight", "3 first values", "[2, 2]"}));
    ExpectUntouched(model, "values");
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      if (path == "1.weight") parameter.init = ParameterInit::Values({1, 2, 3, 4});
    });
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
    return model(Full(context, mesh, {Replicate()}, {2, 2}, DType::kF32, 1)).status();
  }));
}

TEST(PlanMistakes, APlanIsAppliedOnceAndBeforeThereIsMemory) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("has memory already"), HasSubstr("once")));
    Transformer model(SmallTransformer()), materialized(SmallTransformer());
    DT_RETURN_IF_ERROR(PlanFor(mesh, true).Apply(model, context, mesh, {.seed = 3}));
    DT_ASSIGN_OR_RETURN(const double before, LossOf(context, mesh, model));
    EXPECT_THAT(PlanFor(mesh, true).Apply(model, context, mesh, {.seed = 3}), refused);
    EXPECT_THAT(PlanFor(mesh, false).Apply(model, context, mesh, {.seed = 4}), refused);
    EXPECT_THAT(ParallelPlan().Apply(model, context, mesh, {}), refused);
    DT_ASSIGN_OR_RETURN(const double after, LossOf(context, mesh, model));
    EXPECT_EQ(after, before);
    DT_RETURN_IF_ERROR(materialized.Materialize(context, mesh, 3));
    DT_ASSIGN_OR_RETURN(const double whole, LossOf(context, mesh, materialized));
    EXPECT_THAT(PlanFor(mesh, true).Apply(materialized, context, mesh, {}), refused);
    DT_ASSIGN_OR_RETURN(const double whole_after, LossOf(context, mesh, materialized));
    EXPECT_EQ(whole_after, whole);
    EXPECT_NEAR(whole, before, 1e-5);
    return absl::OkStatus();
  }));
}

// With sequence parallelism a norm's gradient is a sum over ranks until it is reduced.
TEST(StepMistakes, AStepOnAPartialGradientIsRefusedAndChangesNothing) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    Transformer model(SmallTransformer());
    DT_RETURN_IF_ERROR(PlanFor(mesh, true).Apply(model, context, mesh, {.seed = 3}));
    DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model.Parameters(), {}));
    const TensorOr ids = Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {4, 8}, Ids(32));
    DT_RETURN_IF_ERROR(Backward(Mean(CrossEntropy(model(ids), ids), {0, 1})));
    DT_ASSIGN_OR_RETURN(const double before, LossOf(context, mesh, model));
    EXPECT_THAT(adamw.Step(0.1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("AdamW"), HasSubstr("ReduceGradients"))));
    DT_ASSIGN_OR_RETURN(const double unchanged, LossOf(context, mesh, model));
    EXPECT_EQ(unchanged, before);
    DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
    DT_RETURN_IF_ERROR(adamw.Step(0.1));
    DT_ASSIGN_OR_RETURN(const double stepped, LossOf(context, mesh, model));
    EXPECT_NE(stepped, before);
    return absl::OkStatus();
  }));
}

// What no rank can know by itself: the world fails, and nobody waits for ever.
TEST(PlanMistakes, PlansThatDifferBetweenRanksFailTheWorldNamingBothSides) {
  const absl::Status status = RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    Transformer model(SmallTransformer());
    const bool sequence_parallel = context.rank() == 0;
    DT_RETURN_IF_ERROR(PlanFor(mesh, sequence_parallel).Apply(model, context, mesh, {.seed = 3}));
    return LossOf(context, mesh, model).status();
  });
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
}

// Axes of another mesh have the same numbers: what is split there would be split by another axis.
TEST(PlanMistakes, AnActivationOnAnotherMesh) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=2"));
    DropoutLayer model(0);
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan,
                        ParallelPlan::Parse("{\"\", Edges(\"tp\", in S(0), out S(1))}"));
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3}));
    for (const char* text : {"tp=2,dp=2", "all=4"}) {
      DT_ASSIGN_OR_RETURN(const DeviceMesh other, DeviceMesh::Parse(text));
      DT_ASSIGN_OR_RETURN(const auto x,
                          Full(context, Layout::Replicated(other, 2), {4, 4}, DType::kF32, 1));
      EXPECT_THAT(model(x).status(),
                  Refuses({"lies on " + other.ToString(), "applied on [\"dp\"=2, \"tp\"=2]"}));
    }
    DT_ASSIGN_OR_RETURN(const auto x,
                        Full(context, Layout::Replicated(mesh, 2), {4, 4}, DType::kF32, 1));
    const TensorOr y = model(x);
    DT_RETURN_IF_ERROR(y.status());
    EXPECT_EQ(y->layout().ToString(), "[] [tp]");
    return absl::OkStatus();
  }));
}

// What comes is known when it comes.
TEST(PlanMistakes, AnActivationWithoutTheEdgesDimension) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    for (const auto& [edges, named] :
         {std::pair("in S(5), out R", "0: the plan's input edge is S(5) on tp"),
          std::pair("in R, out S(-3)", "0: the plan's output edge is S(-3) on tp")}) {
      Sequential model;
      model.Append(std::make_unique<DropoutLayer>(0));
      DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse("{\"0\", Edges(\"tp\", " +
                                                                       std::string(edges) + ")}"));
      DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3}));
      DT_ASSIGN_OR_RETURN(const auto x,
                          Full(context, Layout::Replicated(mesh, 2), {4, 4}, DType::kF32, 1));
      EXPECT_THAT(model(x).status(),
                  Refuses({named, "of shape [4, 4]", "one of its 2 in the plan"}));
    }
    return absl::OkStatus();
  }));
}

TEST(PlanMistakes, IdsWithoutABatch) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("one=1"));
    Transformer model(SmallTransformer());
    DT_RETURN_IF_ERROR(ParallelPlan().Apply(model, context, mesh, {.seed = 3}));
    DT_ASSIGN_OR_RETURN(const auto ids,
                        Full(context, Layout::Replicated(mesh, 1), {8}, DType::kI64, 1));
    EXPECT_THAT(model(ids).status(),
                Refuses({"Transformer: the ids are [8] i64", "give them as [batch, sequence]"}));
    return absl::OkStatus();
  }));
}

TEST(PlanMistakes, TextNamesLineAndColumn) {
  const Mistake texts[] = {
      {"{\"a\", Colwise(\"tp\")}\n\n{\"b\", Rowwise(\"tp\" out R)}", {"line 3", "column 20"}},
      {"{\"a\" Colwise(\"tp\")}", {"line 1", "column 6"}},
      {"\n{\"a\", Colwize(\"tp\")}", {"line 2", "no style Colwize", "Colwise"}},
      {"{\"a\", FullyShard(\"dp\", 9999999999999999999999)}", {"line 1", "column"}},
  };
  for (const Mistake& text : texts) {
    EXPECT_THAT(ParallelPlan::Parse(text.plan).status(), Refuses(text.named)) << text.plan;
  }
}

}  // namespace
}  // namespace dtensor
