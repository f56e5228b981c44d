// FullyShard: training equals that of one rank, and how plans interpret its lines. Memory and
// traffic are counted in fully_shard_memory_test.
#include "dtensor/parallel_plans/fully_shard.h"

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_split.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
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
using Values = std::map<std::string, std::vector<double>>;

constexpr int64_t kBatch = 12, kSequence = 4;

struct Case {
  std::string mesh, plan;
  bool tied = false;
  int micro_batches = 1;
  DType dtype = DType::kF64;
  Device::Kind device = Device::Kind::kCpu;
  std::vector<std::string> recompute = {};  // modules
  bool keep = false;                        // gathered activations, and results of collectives
};

struct Outcome {
  std::vector<double> losses;
  Values gradients, weights;  // after the first step's backward; after all steps
};

absl::StatusOr<Values> Read(Context& context, Module& model, bool gradients) {
  const NoGrad no_grad(context);
  Values all;
  absl::Status status;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!status.ok()) return;
    const TensorOr wide = Cast(gradients ? parameter.tensor.grad() : parameter.tensor, DType::kF64);
    status.Update(wide.status());
    if (!wide.ok()) return;
    auto values = ToGlobal<double>(*wide);
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

// Ids, and as targets the same ids turned.
TensorOr Tokens(Context& context, const DeviceMesh& mesh, int micro, int factor) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(static_cast<int32_t>((i + micro) * factor % kSmallVocab));
  }
  return Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {kBatch, kSequence}, ids);
}

absl::Status Train(Context& context, const Case& c, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(c.plan));
  TransformerConfig config = SmallTransformer();
  config.tie_embeddings = c.tied;
  Transformer model(config);
  model.SetDType(c.dtype);
  const ParallelPlanOptions options = {.seed = 3,
                                       .keep_gathered = c.keep,
                                       .recompute = c.recompute,
                                       .recompute_keeps_collectives = c.keep};
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, options));
  DT_ASSIGN_OR_RETURN(AdamW optimizer, AdamW::Create(model.Parameters(), {}));
  Outcome mine;
  for (int step = 0; step < 5; ++step) {
    for (int micro = 0; micro < c.micro_batches; ++micro) {
      const TensorOr logits = model(Tokens(context, mesh, micro, 7));
      const TensorOr loss = Mean(CrossEntropy(logits, Tokens(context, mesh, micro, 5)), {0, 1});
      DT_RETURN_IF_ERROR(loss.status());
      DT_ASSIGN_OR_RETURN(const double value, Item(*Cast(loss->Detach(), DType::kF64)));
      mine.losses.push_back(value);
      DT_RETURN_IF_ERROR(Backward(loss));
    }
    DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(mine.gradients, Read(context, model, true));
    }
    DT_RETURN_IF_ERROR(optimizer.Step(0.01));
    optimizer.ClearGradients();
  }
  DT_ASSIGN_OR_RETURN(mine.weights, Read(context, model, false));
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

Outcome RunCase(const Case& c) {
  Outcome outcome;
  RunOptions options;
  options.device = c.device;
  options.seed = 5;
  EXPECT_THAT(RunRanks(
                  DeviceMesh::Parse(c.mesh)->size(),
                  [&](Context& context) { return Train(context, c, outcome); }, options),
              IsOk())
      << c.mesh << "\n"
      << c.plan;
  return outcome;
}

// Against the same model on one rank.
void ExpectSame(const Case& c, double tolerance = 1e-10) {
  static auto& known = *new std::map<std::tuple<bool, int, DType>, Outcome>();
  const auto [it, fresh] = known.try_emplace({c.tied, c.micro_batches, c.dtype});
  Outcome& one = it->second;
  if (fresh) one = RunCase({"dp=1", "", c.tied, c.micro_batches, c.dtype});
  const Outcome run = RunCase(c);
  const std::string what = c.mesh + "\n" + c.plan;
  ASSERT_EQ(run.losses.size(), one.losses.size()) << what;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(run.losses[i], one.losses[i], tolerance * one.losses[i]) << what;
  }
  ASSERT_EQ(run.gradients.size(), one.gradients.size()) << what;
  for (const auto& [path, gradient] : one.gradients) {
    EXPECT_LE(RelativeRms(run.gradients.at(path), gradient), tolerance) << what << " " << path;
    EXPECT_LE(RelativeRms(run.weights.at(path), one.weights.at(path)), tolerance)
        << what << " " << path;
  }
}

// Each layer and the two tables are units; so is the rest.
std::string Units(const std::string& axis, const std::string& level = "") {
  const std::string style = "FullyShard(\"" + axis + "\"" + level + ")}\n";
  return "{\"model.layers.*\", " + style + "{\"{model.embed_tokens,lm_head}\", " + style +
         "{\"\", " + style;
}

std::string WithTensorParallel(bool sequence_parallel) {
  return TensorParallelPlan("tp", sequence_parallel).ToString() + "\n" + Units("dp");
}

TEST(FullyShard, TrainsAsOneRankDoes) {
  ExpectSame({"dp=1", Units("dp")});
  ExpectSame({"dp=2", Units("dp")});
  ExpectSame({"dp=3", Units("dp")});  // 16 features and 12 rows: shards of 6, 6 and 4
  ExpectSame({.mesh = "dp=4", .plan = Units("dp"), .device = Device::Kind::kDeferred});
}

TEST(FullyShard, TrainsTheSameWithTensorParallelism) {
  ExpectSame({"dp=2,tp=2", WithTensorParallel(false)});
  ExpectSame({"dp=2,tp=2", WithTensorParallel(true)});
  ExpectSame({"tp=2,dp=2", WithTensorParallel(true)});
  ExpectSame({"dp=3,tp=2", WithTensorParallel(true)});
}

TEST(FullyShard, TrainsTheSameWithReplicas) {
  ExpectSame({"replicate=2,shard=2", Units("shard") + "{\"\", DataParallel(\"replicate\")}"});
}

TEST(FullyShard, TrainsTheSameOverAGroupOfAxes) {
  ExpectSame({"dp=2,cp=2; all=dp*cp", Units("all")});
}

TEST(FullyShard, TrainsTheSameWithTiedEmbeddings) {
  ExpectSame({.mesh = "dp=2", .plan = Units("dp"), .tied = true});
  ExpectSame({.mesh = "dp=2", .plan = "{\"\", FullyShard(\"dp\")}", .tied = true});
  ExpectSame({.mesh = "dp=2,tp=2", .plan = WithTensorParallel(true), .tied = true});
}

TEST(FullyShard, TrainsTheSameWithLayersThatAreRecomputed) {
  const std::string plan = "{\"model.layers.*\", FullyShard(\"dp\")}\n{\"\", FullyShard(\"dp\")}";
  for (const bool tied : {false, true}) {
    Case c{"dp=3", plan, tied};
    c.recompute = {"model.layers.*"};
    ExpectSame(c);
    c.micro_batches = 2;
    ExpectSame(c);
  }
  // Parts of a unit; one in another.
  for (const bool keep : {false, true}) {
    Case c{.mesh = "dp=2,tp=2", .plan = WithTensorParallel(true), .keep = keep};
    c.recompute = {"model.layers.*.mlp"};
    ExpectSame(c);
    c.recompute = {"model.layers.*.self_attn", "model.layers.1", "lm_head"};
    ExpectSame(c);
    c.recompute = {"model", "model.layers.0.self_attn"};
    ExpectSame(c);
  }
}

TEST(FullyShard, AddsMicroBatchesInTheShards) {
  ExpectSame({.mesh = "dp=2", .plan = Units("dp"), .micro_batches = 2});
  ExpectSame({.mesh = "dp=3", .plan = Units("dp"), .tied = true, .micro_batches = 2});
}

TEST(FullyShard, TrainsTheSameAtEachLevel) {
  for (const std::string level : {", 1", ", 2"}) {
    ExpectSame({.mesh = "dp=2", .plan = Units("dp", level), .micro_batches = 2});
    ExpectSame({.mesh = "dp=3", .plan = Units("dp", level), .tied = true});
  }
}

TEST(FullyShard, TrainsTheSameWithOtherUnits) {
  ExpectSame({"dp=2", "{\"\", FullyShard(\"dp\")}"});
  // Only the layers: the model is no unit, and the rest is replicated.
  ExpectSame({"dp=2", "{\"model.layers.*\", FullyShard(\"dp\")}\n{\"\", DataParallel(\"dp\")}"});
  // Units in units.
  ExpectSame({"dp=2", Units("dp") + "{\"model.layers.*.mlp\", FullyShard(\"dp\")}"});
}

TEST(FullyShard, TrainsAboutTheSameInBf16) {
  ExpectSame({.mesh = "dp=2", .plan = Units("dp"), .dtype = DType::kBF16}, 0.05);
  ExpectSame({.mesh = "dp=3", .plan = Units("dp"), .dtype = DType::kF32}, 1e-3);
}

// Applies the plan to a model of type M on every rank of `mesh_text`, and runs `test` there.
template <typename M>
absl::Status Applied(absl::string_view mesh_text, const std::string& text, M (*make)(),
                     const std::function<absl::Status(Context&, const DeviceMesh&, M&)>& test) {
  return RunRanks(DeviceMesh::Parse(mesh_text)->size(), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
    DT_ASSIGN_OR_RETURN(const ParallelPlan plan, ParallelPlan::Parse(text));
    M model = make();
    DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
    return test(context, mesh, model);
  });
}

TwoTowers Towers() { return TwoTowers(8); }
TwoTowers OddTowers() { return TwoTowers(7); }

TEST(FullyShard, AUnitThatIsCalledTwiceGivesTheSame) {
  Values gradients[2];
  const std::string plans[] = {"",
                               "{\"{a,b,a.proj}\", FullyShard(\"dp\")}\n"
                               "{\"\", FullyShard(\"dp\")}"};
  for (int i : {0, 1}) {
    EXPECT_THAT(Applied<TwoTowers>(i == 0 ? "dp=1" : "dp=2", plans[i], Towers,
                                   [&](Context& context, const DeviceMesh& mesh, TwoTowers& model) {
                                     for (int micro = 0; micro < 2; ++micro) {
                                       const TensorOr x =
                                           RandomNormal(context, Layout::Replicated(mesh, 3),
                                                        {4, 2, 8}, {.seed = 2});
                                       DT_RETURN_IF_ERROR(Backward(Sum(model(x), {0, 1, 2})));
                                     }
                                     DT_ASSIGN_OR_RETURN(Values read, Read(context, model, true));
                                     if (context.rank() == 0) gradients[i] = std::move(read);
                                     return absl::OkStatus();
                                   }),
                IsOk());
  }
  ASSERT_EQ(gradients[0].size(), 3);
  for (const auto& [path, gradient] : gradients[0]) {
    EXPECT_LE(RelativeRms(gradients[1].at(path), gradient), 1e-5) << path;
  }
}

TEST(FullyShard, RestsWhereTheLargestShardIsLeast) {
  struct {
    std::string used;
    Dims shape;
    AxisList axes;
    std::string rests;
  } const cases[] = {
      {"R R", {8, 8}, {0}, "S(0) R"},        {"R R", {6, 8}, {0}, "S(1) R"},
      {"R R", {5, 7}, {0}, "S(1) R"},        {"R S(0)", {8, 8}, {0}, "S(1) S(0)"},
      {"R S(0)", {16, 3}, {0}, ""},          {"R R", {1, 1}, {0}, "S(0) R"},
      {"R R", {8, 16}, {0, 1}, "S(0) S(0)"}, {"R R", {4, 16}, {0, 1}, "S(1) S(1)"},
  };
  const DeviceMesh mesh = *DeviceMesh::Parse("dp=4,tp=2");
  for (const auto& c : cases) {
    std::vector<Placement> placements;
    for (const absl::string_view one : absl::StrSplit(c.used, ' ')) {
      placements.push_back(*Placement::Parse(one));
    }
    const Layout used = *Layout::FromPlacements(mesh, placements, c.shape);
    const auto rests = ShardBetweenUses(used, c.shape, c.axes);
    ASSERT_THAT(rests, IsOk());
    if (c.rests.empty()) {  // dp beside tp
      EXPECT_EQ(rests->LocalShape(c.shape, 0), (Dims{2, 3}));
      continue;
    }
    placements.clear();
    for (const absl::string_view one : absl::StrSplit(c.rests, ' ')) {
      placements.push_back(*Placement::Parse(one));
    }
    EXPECT_EQ(*rests, *Layout::FromPlacements(mesh, placements, c.shape))
        << c.used << " " << rests->ToString();
  }
}

TEST(FullyShard, ExplainSaysWhereParametersRestAndHowTheyAreUsed) {
  EXPECT_THAT(Applied<TwoTowers>("dp=2", "{\"\", FullyShard(\"dp\")}", OddTowers,
                                 [](Context&, const DeviceMesh&, TwoTowers& model) {
                                   EXPECT_THAT(
                                       Explain(model),
                                       AllOf(HasSubstr("weight [7, 7] as [dp] [], used as [] []"),
                                             HasSubstr("in S(0) on dp")));
                                   return absl::OkStatus();
                                 }),
              IsOk());
}

TEST(FullyShard, ReadsItsText) {
  for (const std::string text : {"{\"a\", FullyShard(\"dp\")}", "{\"a\", FullyShard(\"dp\", 2)}"}) {
    const auto plan = ParallelPlan::Parse(text);
    ASSERT_THAT(plan, IsOk());
    EXPECT_EQ(plan->ToString(), text);
  }
  EXPECT_EQ(FullyShard("dp", 3).ToString(), "FullyShard(\"dp\")");
  EXPECT_THAT(ParallelPlan::Parse("{\"a\", FullyShard(\"dp\", S(0))}"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not take")));
}

TEST(FullyShard, RefusesLinesThatDisagree) {
  const auto refuses = [](const std::string& text, const std::string& why) {
    EXPECT_THAT(Applied<TwoTowers>(
                    "dp=2,tp=2", text, Towers,
                    [](Context&, const DeviceMesh&, TwoTowers&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refuses("{\"\", FullyShard(\"dp\", 4)}", "there is no level 4");
  refuses("{\"\", FullyShard(\"dp\")}\n{\"\", DataParallel(\"dp\")}", "keep one of them");
  refuses("{\"a\", FullyShard(\"dp\")}\n{\"a\", FullyShard(\"tp\")}", "is a unit of the line");
  refuses(
      "{\"a\", FullyShard(\"dp\")}\n{\"a.proj\", Colwise(\"dp\")}\n{\"b.proj\", Colwise(\"dp\")}",
      "parameter a.proj.weight: it is split by \"dp\" already");
  refuses("{\"c\", FullyShard(\"dp\")}", "matches no module");
}

}  // namespace
}  // namespace dtensor
