// Stage: pipelines train as one rank does, and keep and move what their stages need.
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/balancing.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/pipeline.h"
#include "dtensor/parallel_plans/stage.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<double>>;

// Backward of the sum of all losses, and RunPipeline.
const std::optional<PipelineSchedule> kSchedules[] = {std::nullopt, PipelineSchedule::k1F1B,
                                                      PipelineSchedule::kZeroBubble};
std::string ToString(const std::optional<PipelineSchedule>& schedule) {
  return schedule ? std::string(ToString(*schedule)) : "one backward";
}

constexpr int64_t kBatch = 4, kSequence = 8, kMicroBatches = 3;

constexpr char kTwoStages[] = R"({"model.embed_tokens", Stage("pp", 0)}
{"model.layers.{0}", Stage("pp", 0)}
{"model.layers.{1}", Stage("pp", 1)}
{"{model.norm,lm_head}", Stage("pp", 1)}
)";

struct Case {
  std::string mesh, plan;
  std::vector<std::string> recompute = {};
  bool tied = false;
  // Unset: Backward of the sum of all losses.
  std::optional<PipelineSchedule> schedule = std::nullopt;
  bool mixtures = false;  // whose balancing loss is a part of the loss
};

struct Outcome {
  std::vector<double> losses, norms;
  Values gradients, weights;  // after the first step's backward; after all steps
};
auto ValueFields(Outcome& o) { return std::tie(o.losses, o.norms, o.gradients, o.weights); }

// All elements, on every rank.
absl::StatusOr<std::vector<double>> Everywhere(const DistributedTensor& x, const DeviceMesh& all) {
  const NoGrad no_grad(x.context());
  DT_ASSIGN_OR_RETURN(const auto whole, x.Detach().Redistribute(Layout::Replicated(all, x.ndim())));
  return ToGlobal<double>(whole);
}

absl::StatusOr<Values> Read(Module& model, const DeviceMesh& mesh, bool gradients) {
  Values all;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    auto values = Everywhere(gradients ? parameter.tensor.grad() : parameter.tensor, mesh);
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

// Ids, and as targets the same ids turned.
TensorOr Tokens(Context& context, const DeviceMesh& mesh, int64_t micro, int factor) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(static_cast<int32_t>((i + 31 * micro) * factor % kSmallVocab));
  }
  return Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {kBatch, kSequence}, ids);
}

// What a micro-batch contributes to the mean loss of all.
TensorOr Loss(Context& context, const DeviceMesh& mesh, Module& model, int64_t micro) {
  DT_ASSIGN_OR_RETURN(const auto results, model.Call({Tokens(context, mesh, micro, 7)}));
  const DistributedTensor& logits = results[0];
  DT_ASSIGN_OR_RETURN(const auto targets, Tokens(context, mesh, micro, 5));
  DT_ASSIGN_OR_RETURN(const Layout there, targets.layout().OnMesh(logits.mesh()));
  TensorOr loss = Mean(CrossEntropy(logits, targets.Redistribute(there)), {0, 1});
  if (results.size() == 2) loss = Add(loss, BalancingLoss(results[1], kBatch * kSequence));
  return Scale(loss, 1.0 / kMicroBatches);
}

// The mean loss, after Backward.
TensorOr LossAndGradients(Context& context, const DeviceMesh& mesh, Module& model, const Case& c) {
  const auto loss = [&](int64_t micro) { return Loss(context, mesh, model, micro); };
  if (c.schedule.has_value()) {
    return RunPipeline(context, mesh, "pp", kMicroBatches, loss,
                       {.schedule = *c.schedule, .bucket_bytes = 1 << 10});
  }
  TensorOr total = loss(0);
  for (int64_t micro = 1; micro < kMicroBatches; ++micro) total = Add(total, loss(micro));
  DT_RETURN_IF_ERROR(Backward(total));
  return total;
}

// The second and the fourth layer have experts.
TransformerConfig WithMixtures() {
  TransformerConfig config = SmallTransformer();
  config.layers = 4;
  config.experts = 4;
  config.dense_layers = {0, 2};
  config.router_sums = true;
  return config;
}

absl::StatusOr<Outcome> Train(Context& context, const Case& c) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(c.plan));
  TransformerConfig config = c.mixtures ? WithMixtures() : SmallTransformer();
  config.tie_embeddings = c.tied;
  Transformer model(config);
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3, .recompute = c.recompute}));
  const std::vector<DistributedTensor> parameters = model.Parameters();
  DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(parameters, {}));
  Outcome mine;
  for (int step = 0; step < 3; ++step) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, LossAndGradients(context, mesh, model, c));
    DT_ASSIGN_OR_RETURN(const std::vector<double> value, Everywhere(loss, mesh));
    mine.losses.push_back(value[0]);
    DT_RETURN_IF_ERROR(ReduceGradients(parameters));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(mine.gradients, Read(model, mesh, true));
    }
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(parameters, 0.1));
    DT_ASSIGN_OR_RETURN(const std::vector<double> norm, Everywhere(clip.norm, mesh));
    mine.norms.push_back(norm[0]);
    DT_RETURN_IF_ERROR(optimizer.Step(0.01, clip.scale));
    optimizer.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(mine.weights, Read(model, mesh, false));
  return mine;
}

// What all ranks have alike.
Outcome RunCase(const Case& c) {
  const int ranks = DeviceMesh::Parse(c.mesh)->size();
  auto outcomes = OnSuiteRanks(ranks, [&](Context& context) { return Train(context, c); });
  EXPECT_THAT(outcomes, IsOk()) << c.mesh << "\n" << c.plan;
  if (!outcomes.ok()) return {};
  for (Outcome& one : *outcomes) {
    EXPECT_EQ(ValueFields(one), ValueFields(outcomes->front())) << c.mesh << "\n" << c.plan;
  }
  return outcomes->front();
}

void ExpectSame(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [path, values] : want) {
    EXPECT_LE(RelativeRms(got.at(path), values), 1e-9) << path << " " << what;
  }
}

TEST(Stages, TrainAsOneRankDoes) {
  const std::string tp = TensorParallelPlan("tp", /*sequence_parallel=*/true).ToString() + "\n";
  const std::string dp = "{\"\", DataParallel(\"dp\")}\n";
  const std::string fsdp = R"({"model.layers.*", FullyShard("dp")}
{"{model.embed_tokens,lm_head}", FullyShard("dp")}
{"", FullyShard("dp")}
)";
  const std::string three = R"({"model.embed_tokens", Stage("pp", 0)}
{"model.layers.*", Stage("pp", 1)}
{"{model.norm,lm_head}", Stage("pp", 2)}
)";
  // A stage inside another one, to which the activations return.
  const std::string inside = R"({"model.layers.0", Stage("pp", 1)}
{"model", Stage("pp", 0)}
{"lm_head", Stage("pp", 2)}
)";
  for (const bool is_tied : {false, true}) {
    const Outcome one = RunCase({.mesh = "tp=1", .plan = "", .recompute = {}, .tied = is_tied});
    std::vector<Case> cases = {
        {"pp=2", kTwoStages},
        {"pp=2", kTwoStages, {"model.layers.*"}},
        {"tp=2,pp=2", absl::StrCat(tp, kTwoStages)},
        {"pp=2,dp=2,tp=2", absl::StrCat(tp, dp, kTwoStages)},
        {"pp=2,dp=2,tp=2", absl::StrCat(tp, fsdp, kTwoStages)},
        {"pp=2,dp=2", absl::StrCat(fsdp, kTwoStages), {"{model.layers.*,lm_head}"}},
        {"pp=2,dp=2", absl::StrCat(fsdp, kTwoStages), {""}},  // all stages in one
        {"pp=3", three},
        {"pp=3", three, {"{model,model.layers.*.mlp}"}},
        {"pp=3,dp=2", absl::StrCat(dp, three)},
        {"pp=3,dp=2", absl::StrCat(dp, inside)},
        {"pp=2,cp=2",
         absl::StrCat(ContextParallelPlan("cp", "zigzag").ToString(), "\n", kTwoStages)}};
    for (Case c : cases) {
      if (!SuiteHasRanks(DeviceMesh::Parse(c.mesh)->size())) continue;
      Outcome in_turns;
      for (const auto& schedule : kSchedules) {
        if (schedule && c.plan == dp + inside) continue;  // RunPipeline fails there
        c.tied = is_tied;
        c.schedule = schedule;
        const std::string what = absl::StrCat(is_tied ? "tied, on " : "on ", c.mesh, ", ",
                                              ToString(schedule), "\n", c.plan);
        Outcome run = RunCase(c);
        EXPECT_LE(RelativeRms(run.losses, one.losses), 1e-10) << what;
        EXPECT_LE(RelativeRms(run.norms, one.norms), 1e-9) << what;
        ExpectSame(run.gradients, one.gradients, "gradient " + what);
        ExpectSame(run.weights, one.weights, "weight " + what);
        if (schedule == PipelineSchedule::k1F1B) in_turns = run;
        if (schedule == PipelineSchedule::kZeroBubble) {
          EXPECT_EQ(ValueFields(run), ValueFields(in_turns)) << what;
        }
      }
    }
  }
}

// Router sums go from stage to stage with the activations, through stages without experts, too.
TEST(Stages, BalanceTheExpertsOfAllStages) {
  const Outcome one = RunCase({.mesh = "tp=1", .plan = "", .mixtures = true});
  const std::string two = PipelinePlan("pp", 2, 4).ToString() + "\n";
  const std::string four = PipelinePlan("pp", 4, 4).ToString() + "\n";
  const std::string tp = TensorParallelPlan("tp", true, {}, {.experts = true}).ToString() + "\n";
  const std::string ep = ExpertParallelPlan("ep").ToString() + "\n";
  const std::string without_head = R"({"model", Stage("pp", 0)}
{"model.layers.3", Stage("pp", 1)}
{"model.norm", Stage("pp", 1)}
{"lm_head", Stage("pp", 2)}
)";
  for (Case c : std::vector<Case>{{"pp=2", two},
                                  {"pp=4", four},
                                  {"pp=4", four, {"model.layers.*"}},
                                  {"pp=2,tp=2", tp + two},
                                  {"pp=2,ep=2", ep + two, {"model.layers.{1,2}"}},
                                  {"pp=3", without_head},
                                  {"pp=3,ep=2", ep + without_head, {"model.layers.*"}},
                                  {"pp=4,ep=2", ep + four}}) {
    if (!SuiteHasRanks(DeviceMesh::Parse(c.mesh)->size())) continue;
    c.mixtures = true;
    for (const auto& schedule : kSchedules) {
      c.schedule = schedule;
      const std::string what = absl::StrCat(c.mesh, ", ", ToString(schedule), "\n", c.plan);
      const Outcome run = RunCase(c);
      EXPECT_LE(RelativeRms(run.losses, one.losses), 1e-10) << what;
      ExpectSame(run.gradients, one.gradients, "gradient " + what);
      ExpectSame(run.weights, one.weights, "weight " + what);
    }
  }
}

// Calls of a forward pass that add anything up, by axes and kind, of all ranks. A move between
// stages is an exchange and, of what it reduces, an all-gather.
absl::StatusOr<std::map<std::string, int64_t>> ReductionsInStages(const Case& c, bool router_sums) {
  using Calls = std::map<std::string, int64_t>;
  const auto forward = [&](Context& context) -> absl::StatusOr<Calls> {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(c.plan));
    TransformerConfig config = WithMixtures();
    config.router_sums = router_sums;
    Transformer model(config);
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3}));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(model.Call({Tokens(context, mesh, 0, 7)}).status());
    Calls calls;
    for (const auto& [key, traffic] : context.communicator().traffic()) {
      const absl::string_view kind = ToString(key.second);
      if (absl::StrContains(kind, "reduce"))
        calls[absl::StrCat(key.first, " ", kind)] += traffic.calls;
    }
    return calls;
  };
  DT_ASSIGN_OR_RETURN(const std::vector<Calls> ranks,
                      OnSuiteRanks(DeviceMesh::Parse(c.mesh)->size(), forward));
  Calls all;
  for (const Calls& calls : ranks) {
    for (const auto& [key, count] : calls) all[key] += count;
  }
  return all;
}

// They are whole after a stage, and terms of Partial sums again in the next one's mixtures.
TEST(Stages, RouterSumsMoveBetweenStagesOnly) {
  const std::string four = PipelinePlan("pp", 4, 4).ToString() + "\n";
  const std::string tp = TensorParallelPlan("tp", true, {}, {.experts = true}).ToString() + "\n";
  for (const Case& c : std::vector<Case>{{"pp=4,dp=2", "{\"\", DataParallel(\"dp\")}\n" + four},
                                         {"pp=4,tp=2", tp + four}}) {
    if (!SuiteHasRanks(DeviceMesh::Parse(c.mesh)->size())) continue;
    const auto with = ReductionsInStages(c, true), without = ReductionsInStages(c, false);
    ASSERT_THAT(with, IsOk());
    ASSERT_THAT(without, IsOk());
    EXPECT_EQ(*with, *without) << c.mesh;
  }
}

// Three layers with one weight, which the model lists from the last to the first.
class SharedByThree : public Module {
 public:
  SharedByThree() : first_(6, 6, 0.5), second_(first_.weight()), third_(first_.weight()) {
    AddChild("third", &third_);
    AddChild("second", &second_);
    AddChild("first", &first_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return third_(Tanh(second_(Tanh(first_(x)))));
  }

 private:
  LinearLayer first_, second_, third_;
};

// The weight is in the earliest stage that reads it, so nothing goes against the activations.
TEST(Stages, ShareAWeightThatTheLastOneListsFirst) {
  constexpr char kPlan[] = R"({"first", Stage("pp", 0)}
{"second", Stage("pp", 1)}
{"third", Stage("pp", 2)}
)";
  std::vector<double> one;
  for (const auto& [text, plan] :
       {std::pair<std::string, std::string>("pp=1", ""),
        {"pp=3", kPlan},
        {"dp=2,pp=3", absl::StrCat(kPlan, "{\"\", FullyShard(\"dp\")}")}}) {
    const DeviceMesh mesh = *DeviceMesh::Parse(text);
    if (!SuiteHasRanks(mesh.size())) continue;
    const auto all =
        OnSuiteRanks(mesh.size(), [&](Context& context) -> absl::StatusOr<std::vector<double>> {
          SharedByThree model;
          model.SetDType(DType::kF64);
          DT_RETURN_IF_ERROR(ParallelPlan::Parse(plan)->Apply(model, context, mesh, {.seed = 3}));
          const DistributedTensor weight = model.Parameters()[0];
          EXPECT_TRUE(weight.mesh().Contains(0)) << text;
          const auto loss = [&](int64_t micro) -> TensorOr {
            const TensorOr x = Full(context, Layout::Replicated(mesh, 2), {4, 6}, DType::kF64,
                                    0.1 * static_cast<double>(micro + 1));
            return Sum(model(x), {0, 1});
          };
          DT_RETURN_IF_ERROR(RunPipeline(context, mesh, "pp", kMicroBatches, loss).status());
          DT_RETURN_IF_ERROR(ReduceGradients({weight}));
          return Everywhere(weight.grad(), mesh);
        });
    ASSERT_THAT(all, IsOk()) << text;
    if (one.empty()) one = all->front();
    for (const std::vector<double>& mine : *all) EXPECT_LE(RelativeRms(mine, one), 1e-12) << text;
  }
}

TEST(Stages, HoldTheirOwnParametersAlone) {
  for (int rank = 0; rank < 2; ++rank) {
    DT_EXPECT_OK(Simulate(rank, 2, [&](Context& context) -> absl::Status {
      const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
      Transformer model(SmallTransformer());
      const int64_t before = context.device().memory().live_bytes;
      DT_RETURN_IF_ERROR(ParallelPlan::Parse(kTwoStages)->Apply(model, context, mesh, {}));
      int64_t held = 0;
      model.VisitParameters([&](const std::string& path, Parameter& parameter) {
        const bool first = path.starts_with("model.embed") || path.starts_with("model.layers.0");
        const DistributedTensor& tensor = parameter.tensor;
        EXPECT_EQ(tensor.mesh().Contains(0), first) << path;
        EXPECT_EQ(tensor.local().numel() > 0, first == (rank == 0)) << path;
        held += tensor.local().numel() * SizeOf(tensor.dtype());
      });
      EXPECT_EQ(context.device().memory().live_bytes - before, held);
      return absl::OkStatus();
    }));
  }
}

TEST(Stages, MoveAnActivationOnceInEachDirection) {
  DT_EXPECT_OK(Simulate(1, 2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
    Transformer model(SmallTransformer());
    DT_RETURN_IF_ERROR(ParallelPlan::Parse(kTwoStages)->Apply(model, context, mesh, {}));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Backward(Loss(context, mesh, model, 0)));
    int64_t calls = 0, bytes = 0;
    for (const auto& [key, traffic] : context.communicator().traffic()) {
      calls += traffic.calls;
      bytes += traffic.bytes;
    }
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(bytes, kBatch * kSequence * 16 * 4);  // it receives the activation
    return absl::OkStatus();
  }));
}

TEST(Stages, ArePrintedReadAndExplained) {
  const absl::StatusOr<ParallelPlan> plan = ParallelPlan::Parse(kTwoStages);
  DT_ASSERT_OK(plan.status());
  EXPECT_EQ(plan->lines()[0].ToString(), R"({"model.embed_tokens", Stage("pp", 0)})");
  EXPECT_THAT(ParallelPlan::Parse(plan->ToString()), IsOkAndHolds(*plan));
  EXPECT_EQ(PipelinePlan("pp", 2, 2), *plan);
  EXPECT_EQ(PipelinePlan("p", 3, 5).ToString(),
            R"({"model.embed_tokens", Stage("p", 0)}
{"model.layers.{0,1}", Stage("p", 0)}
{"model.layers.{2,3}", Stage("p", 1)}
{"model.layers.{4}", Stage("p", 2)}
{"{model.norm,lm_head}", Stage("p", 2)})");
  EXPECT_THAT(ParallelPlan::Parse(R"({"a", Stage("pp")})").status().message(),
              HasSubstr("Write its number"));
  DT_EXPECT_OK(Simulate(0, 4, [&](Context& context) -> absl::Status {
    TransformerConfig config = SmallTransformer();
    config.tie_embeddings = true;
    Transformer tied(config);
    DT_RETURN_IF_ERROR(plan->Apply(tied, context, *DeviceMesh::Parse("pp=2,dp=2"), {}));
    EXPECT_THAT(Explain(tied),
                HasSubstr("on [\"dp\"=2]@2..3; weight is model.embed_tokens.weight, copied as"));
    Transformer model(SmallTransformer());
    DT_RETURN_IF_ERROR(plan->Apply(model, context, *DeviceMesh::Parse("pp=2,dp=2"), {}));
    EXPECT_THAT(Explain(model),
                AllOf(HasSubstr(R"(model.embed_tokens: on ["dp"=2]@0..1; weight [12, 16] as)"),
                      HasSubstr(R"(lm_head: on ["dp"=2]@2..3; weight)")));
    return absl::OkStatus();
  }));
}

TEST(Stages, RefusesWhatCannotBe) {
  DT_EXPECT_OK(Simulate(0, 4, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2,dp=2");
    const auto refused = [&](const std::string& text) {
      Transformer model(SmallTransformer());
      return std::string(ParallelPlan::Parse(text)->Apply(model, context, mesh, {}).message());
    };
    const std::string two = kTwoStages;
    EXPECT_THAT(refused(R"({"lm_head", Stage("pp", 2)})"), HasSubstr("coordinates are 0 to 1"));
    EXPECT_THAT(refused(R"({"lm_head", Stage("tp", 0)})"), HasSubstr("no axis \"tp\""));
    EXPECT_THAT(refused(R"({"lm_hat", Stage("pp", 0)})"), HasSubstr("nearest is \"lm_head\""));
    EXPECT_THAT(refused(R"({"model", Stage("pp", 0)})"),
                HasSubstr("\"lm_head\" has parameters and is in no stage"));
    EXPECT_THAT(refused(two + R"({"lm_head", Stage("pp", 0)})"), HasSubstr("keep one of them"));
    EXPECT_THAT(refused(two + R"({"lm_head", Colwise("pp")})"),
                AllOf(HasSubstr("\"lm_head\" is in a stage"), HasSubstr("no axis \"pp\"")));
    const DeviceMesh too_large = *DeviceMesh::Parse("pp=4,dp=2");
    Transformer model(SmallTransformer());
    EXPECT_THAT(ParallelPlan::Parse(two)->Apply(model, context, too_large, {}),
                StatusIs(absl::StatusCode::kInvalidArgument));
    model.VisitParameters([](const std::string& path, Parameter& parameter) {
      EXPECT_FALSE(parameter.tensor.defined()) << path;  // nothing has changed
    });
    return absl::OkStatus();
  }));
}

// A tied weight moves once for each step, not for each micro-batch.
TEST(Stages, MoveATiedWeightAfterEachStep) {
  DT_EXPECT_OK(Simulate(1, 2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("pp=2");
    TransformerConfig config = SmallTransformer();
    config.tie_embeddings = true;
    Transformer model(config);
    DT_RETURN_IF_ERROR(ParallelPlan::Parse(kTwoStages)->Apply(model, context, mesh, {}));
    DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(model.Parameters(), {}));
    const int64_t activation = kBatch * kSequence * 16 * 4, weight = kSmallVocab * 16 * 4;
    const auto received = [&]() -> absl::StatusOr<int64_t> {
      context.communicator().ResetTraffic();
      DT_RETURN_IF_ERROR(Backward(Loss(context, mesh, model, 0)));
      int64_t bytes = 0;
      for (const auto& [key, traffic] : context.communicator().traffic()) bytes += traffic.bytes;
      return bytes;
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_THAT(received(), IsOkAndHolds(activation + weight));
      EXPECT_THAT(received(), IsOkAndHolds(activation));
      DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
      DT_RETURN_IF_ERROR(optimizer.Step(0.01));
      optimizer.ClearGradients();
    }
    return absl::OkStatus();
  }));
}

// The sum of the squares of all results, and the norm of all gradients.
template <typename Model, typename Config>
absl::StatusOr<std::vector<double>> LossAndNorm(Context& context, const Config& config,
                                                const std::string& mesh_text) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  Model model(config);
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, mesh, {.seed = 3}).status());
  context.random() = {.seed = 5};  // of dropout
  const DistributedTensor ids = *Tokens(context, mesh, 0, 7), zeros = *FullLike(ids, 0);
  std::vector<TensorOr> operands = {ids, zeros};
  operands.resize(model.operand_names().size(), ids);
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results, model.Call(operands));
  TensorOr loss;
  for (const DistributedTensor& result : results) {
    std::vector<int> dims(result.ndim());
    std::iota(dims.begin(), dims.end(), 0);
    const TensorOr part = Sum(Mul(result, result), dims);
    loss = loss.ok() && loss->defined() ? Add(loss, part) : part;
  }
  DT_RETURN_IF_ERROR(Backward(loss));
  const std::vector<DistributedTensor> parameters = model.Parameters();
  DT_RETURN_IF_ERROR(ReduceGradients(parameters));
  DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(parameters, 1));
  DT_ASSIGN_OR_RETURN(std::vector<double> values, Everywhere(*loss, mesh));
  DT_ASSIGN_OR_RETURN(const std::vector<double> norm, Everywhere(clip.norm, mesh));
  values.push_back(norm[0]);
  return values;
}

template <typename Model, typename Config>
void ExpectStages(const Config& config) {
  const auto run = [&](const std::string& mesh) {
    std::vector<double> values;
    DT_EXPECT_OK(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto mine, (LossAndNorm<Model>(context, config, mesh)));
      if (context.rank() == 0) values = mine;
      return absl::OkStatus();
    }));
    return values;
  };
  const std::vector<double> one = run("tp=1");
  for (const char* const mesh : {"pp=2", "dp=2,pp=2,tp=2"}) {
    EXPECT_LE(RelativeRms(run(mesh), one), 1e-10) << mesh;
  }
}

template <typename Config>
Config Small() {
  Config config;
  config.vocab = kSmallVocab;
  config.positions = kSequence;
  config.dim = 16;
  config.layers = 3;
  config.heads = 4;
  config.hidden = 24;
  config.init_stddev = 0.3;
  return config;
}

TEST(Stages, OtherModelsHaveTheSameResults) {
  ExpectStages<Gpt2>(Small<Gpt2Config>());  // tied, with dropout
  ExpectStages<BertModel>(Small<BertConfig>());
}

}  // namespace
}  // namespace dtensor
