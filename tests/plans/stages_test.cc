// Stage: pipelines train as one rank does, and keep and move what their stages need.
#include "dtensor/parallel_plans/stage.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/parallel_plans/transformer_plan.h"
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
using Values = std::map<std::string, std::vector<double>>;

constexpr int64_t kBatch = 4, kSequence = 8, kMicroBatches = 3;

constexpr char kTwoStages[] = R"({"model.embed_tokens", Stage("pp", 0)}
{"model.layers.0", Stage("pp", 0)}
{"model.layers.1", Stage("pp", 1)}
{"{model.norm,lm_head}", Stage("pp", 1)}
)";

struct Case {
  std::string mesh, plan;
  bool tied = false;
  std::vector<std::string> recompute = {};
};

struct Outcome {
  std::vector<double> losses, norms;
  Values gradients, weights;  // after the first step's backward; after all steps
};

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

// The mean loss of all micro-batches.
TensorOr Loss(Context& context, const DeviceMesh& mesh, Module& model) {
  TensorOr total;
  for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
    DT_ASSIGN_OR_RETURN(const auto logits, model(Tokens(context, mesh, micro, 7)));
    DT_ASSIGN_OR_RETURN(const auto targets, Tokens(context, mesh, micro, 5));
    DT_ASSIGN_OR_RETURN(const Layout there, targets.layout().OnMesh(logits.mesh()));
    const TensorOr loss = Scale(Mean(CrossEntropy(logits, targets.Redistribute(there)), {0, 1}),
                                1.0 / kMicroBatches);
    total = micro == 0 ? loss : Add(total, loss);
  }
  return total;
}

absl::Status Train(Context& context, const Case& c, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(c.plan));
  TransformerConfig config = SmallTransformer();
  config.tie_embeddings = c.tied;
  Transformer model(config);
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(
      plan.Apply(model, context, mesh, {.seed = 3, .recompute = c.recompute}));
  const std::vector<DistributedTensor> parameters = model.Parameters();
  DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(parameters, {}));
  Outcome mine;
  for (int step = 0; step < 3; ++step) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Loss(context, mesh, model));
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_ASSIGN_OR_RETURN(const std::vector<double> value, Everywhere(loss, mesh));
    mine.losses.push_back(value[0]);
    DT_RETURN_IF_ERROR(ReduceGradients(parameters));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(mine.gradients, Read(model, mesh, true));
    }
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(parameters, 0.1));
    DT_ASSIGN_OR_RETURN(const double norm, Item(clip.norm));
    mine.norms.push_back(norm);
    DT_RETURN_IF_ERROR(optimizer.Step(0.01, clip.scale));
    optimizer.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(mine.weights, Read(model, mesh, false));
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

Outcome RunCase(const Case& c) {
  Outcome outcome;
  EXPECT_THAT(RunRanks(DeviceMesh::Parse(c.mesh)->size(),
                       [&](Context& context) { return Train(context, c, outcome); }),
              IsOk())
      << c.mesh << "\n"
      << c.plan;
  return outcome;
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
  const std::string tied = R"({"{model.embed_tokens,model.norm,lm_head}", Stage("pp", 0)}
{"model.layers.*", Stage("pp", 1)}
)";
  const std::string three = R"({"model.layers.0", Stage("pp", 1)}
{"model", Stage("pp", 0)}
{"lm_head", Stage("pp", 2)}
)";
  for (const bool is_tied : {false, true}) {
    const Outcome one = RunCase({.mesh = "tp=1", .plan = "", .tied = is_tied});
    const std::vector<Case> cases =
        is_tied ? std::vector<Case>{{"pp=2", tied, true},
                                    {"pp=2,dp=2,tp=2", absl::StrCat(tp, fsdp, tied), true}}
                : std::vector<Case>{
                      {"pp=2", kTwoStages},
                      {"pp=2", kTwoStages, false, {"model.layers.*"}},
                      {"tp=2,pp=2", absl::StrCat(tp, kTwoStages)},
                      {"pp=2,dp=2,tp=2", absl::StrCat(tp, dp, kTwoStages)},
                      {"pp=2,dp=2,tp=2", absl::StrCat(tp, fsdp, kTwoStages)},
                      {"pp=2,dp=2", absl::StrCat(fsdp, kTwoStages), false, {"model.layers.*"}},
                      {"pp=3,dp=2", absl::StrCat(dp, three)},
                      {"pp=2,cp=2",
                       absl::StrCat(ContextParallelPlan("cp", "zigzag").ToString(), "\n", kTwoStages)}};
    for (const Case& c : cases) {
      const std::string what = absl::StrCat("on ", c.mesh, "\n", c.plan);
      const Outcome run = RunCase(c);
      EXPECT_LE(RelativeRms(run.losses, one.losses), 1e-10) << what;
      EXPECT_LE(RelativeRms(run.norms, one.norms), 1e-9) << what;
      ExpectSame(run.gradients, one.gradients, "gradient " + what);
      ExpectSame(run.weights, one.weights, "weight " + what);
    }
  }
}

}  // namespace
}  // namespace dtensor
