// What stands in several places of a model is one thing with several paths: listed, started,
// reduced, clipped and stepped once, and named by any of them.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/testing/shared_models.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 12, kDim = 8;
using Values = std::map<std::string, std::vector<double>>;

std::vector<std::string> Paths(Module& model, bool all) {
  std::vector<std::string> paths;
  const auto note = [&](const std::string& path, Parameter&) { paths.push_back(path); };
  all ? model.VisitParameterPaths(note) : model.VisitParameters(note);
  return paths;
}

std::vector<std::string> ModulePaths(Module& model, bool all) {
  std::vector<std::string> paths;
  const auto note = [&](const std::string& path, Module&) { paths.push_back(path); };
  all ? model.VisitModulePaths(note) : model.VisitModules(note);
  return paths;
}

// What a checkpoint would hold: every path.
absl::StatusOr<Values> Save(Module& model, bool gradients) {
  Values all;
  absl::Status status;
  model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    auto values = ToGlobal<double>(gradients ? parameter.tensor.grad() : parameter.tensor);
    status.Update(values.status());
    if (values.ok()) all[path] = *std::move(values);
  });
  DT_RETURN_IF_ERROR(status);
  return all;
}

// Applies `plan` to `model` on every rank of `mesh_text`; returns the first error, and rank 0's
// Explain.
template <typename Model>
absl::StatusOr<std::string> Apply(absl::string_view mesh_text, const ParallelPlan& plan) {
  std::string explained;
  DT_RETURN_IF_ERROR(
      RunRanks(DeviceMesh::Parse(mesh_text)->size(), [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
        Model model;
        DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {}));
        if (context.rank() == 0) explained = Explain(model);
        return absl::OkStatus();
      }));
  return explained;
}
struct Tied : TiedModel {
  Tied() : TiedModel(kVocab, kDim, true) {}
};
struct Towers : TwoTowers {
  Towers() : TwoTowers(kDim) {}
};

TEST(SharedParameter, IsListedOnceAndKnownByAllPaths) {
  Tied model;
  EXPECT_THAT(Paths(model, false), ElementsAre("embed.weight", "mid.weight"));
  EXPECT_THAT(Paths(model, true), ElementsAre("embed.weight", "mid.weight", "head.weight"));
  EXPECT_THAT(RunRanks(1,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
                         Tied made;
                         DT_RETURN_IF_ERROR(made.Materialize(context, mesh, 1));
                         EXPECT_EQ(made.Parameters().size(), 2);
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(SharedParameter, OutlivesTheModuleThatMadeIt) {
  auto embed = std::make_unique<EmbeddingLayer>(kVocab, kDim, 0.5);
  LinearLayer head(embed->weight());
  embed = nullptr;
  EXPECT_THAT(head.weight()->shape, ElementsAre(kVocab, kDim));
}

TEST(SharedModule, IsVisitedOnceAndKnownByAllPaths) {
  Towers model;
  EXPECT_THAT(ModulePaths(model, false), ElementsAre("", "a", "a.proj", "b"));
  EXPECT_THAT(ModulePaths(model, true), ElementsAre("", "a", "a.proj", "b", "b.proj"));
  EXPECT_THAT(Paths(model, false), ElementsAre("a.gain", "a.proj.weight", "b.gain"));
}

// By a plan that names another path only, and by Materialize: the values of the first path.
TEST(SharedParameter, StartsByItsFirstPath) {
  const ParallelPlan plan({{"head", Colwise("tp")}});
  EXPECT_THAT(RunRanks(2,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                         TiedModel planned(kVocab, kDim, true), made(kVocab, kDim, true),
                             untied(kVocab, kDim, false);
                         for (Module* model : {&planned, &made, &untied})
                           model->SetDType(DType::kF64);
                         DT_RETURN_IF_ERROR(plan.Apply(planned, context, mesh, {.seed = 3}));
                         DT_RETURN_IF_ERROR(made.Materialize(context, mesh, 3));
                         DT_RETURN_IF_ERROR(untied.Materialize(context, mesh, 3));
                         DT_ASSIGN_OR_RETURN(Values want, Save(untied, false));
                         EXPECT_NE(want["head.weight"], want["embed.weight"]);
                         want["head.weight"] = want["embed.weight"];
                         for (Module* model : {&planned, &made}) {
                           DT_ASSIGN_OR_RETURN(const Values values, Save(*model, false));
                           EXPECT_EQ(values, want);
                         }
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(SharedParameter, PlansNameItByAnyPath) {
  const std::string split = "embed: weight [12, 8] as [tp] []";
  EXPECT_THAT(Apply<Tied>("tp=2", ParallelPlan({{"embed", Rowwise("tp")}})),
              IsOkAndHolds(split + "; out R on tp\nmid: weight [8, 8] as [] []\n"
                                   "head: weight is embed.weight\n"));
  EXPECT_THAT(Apply<Tied>("tp=2", ParallelPlan({{"head", Colwise("tp")}})),
              IsOkAndHolds(split + "\nmid: weight [8, 8] as [] []\n"
                                   "head: weight is embed.weight; in R on tp\n"));
}

TEST(SharedParameter, LinesThatAgreeKeepTheirEdges) {
  EXPECT_THAT(Apply<Tied>("dp=2,tp=2", ParallelPlan({{"head", Colwise("tp")},
                                                     {"embed", Rowwise("tp", Shard(1))},
                                                     {"embed", Colwise("dp")}})),
              IsOkAndHolds("embed: weight [12, 8] as [tp] [dp]; out S(1) on tp; in R on dp\n"
                           "mid: weight [8, 8] as [] []\n"
                           "head: weight is embed.weight; in R on tp\n"));
}

TEST(SharedParameter, LinesThatDisagreeAreRefusedNamingBoth) {
  for (const bool turned : {false, true}) {
    const ParallelPlan::Line embed = {"embed", Rowwise("tp")}, head = {"head", Rowwise("tp")};
    const ParallelPlan plan(turned ? std::vector{head, embed} : std::vector{embed, head});
    EXPECT_THAT(
        Apply<Tied>("tp=2", plan),
        Refuses(AllOf(HasSubstr("{\"embed\", Rowwise("), HasSubstr("{\"head\", Rowwise("),
                      HasSubstr("embed.weight"), HasSubstr("head.weight"), HasSubstr("S(0)"),
                      HasSubstr("S(1)"), HasSubstr("choose styles that agree"))));
  }
  // Whole is a place as well; so is half of a group of axes.
  EXPECT_THAT(Apply<Tied>("tp=2", ParallelPlan({{"embed", Rowwise("tp")},
                                                {"head", SequenceParallel("tp")}})),
              Refuses(HasSubstr("would rest as R")));
  EXPECT_THAT(Apply<Tied>("a=2,b=2;tp=a*b",
                          ParallelPlan({{"embed", Rowwise("tp")}, {"head", Colwise("a")}})),
              Refuses(HasSubstr("embed.weight as well")));
}

TEST(SharedModule, PlansNameItByAnyPath) {
  const std::string want =
      "a: gain [8] as []\na.proj: weight [8, 8] as [tp] []; in R on tp\nb: gain [8] as []\n"
      "b.proj: the module a.proj\n";
  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{"a.proj"}, {"b.proj"}, {"*.proj"}, {"a.proj", "b.proj"}}) {
    ParallelPlan plan;
    for (const std::string& pattern : patterns) plan.Add({pattern, Colwise("tp")});
    EXPECT_THAT(Apply<Towers>("tp=2", plan), IsOkAndHolds(want)) << plan.ToString();
  }
}

TEST(SharedModule, LinesThatDisagreeAreRefusedNamingBoth) {
  EXPECT_THAT(
      Apply<Towers>("tp=2", ParallelPlan({{"a.proj", Colwise("tp")}, {"b.proj", Rowwise("tp")}})),
      Refuses(AllOf(HasSubstr("{\"a.proj\", Colwise(\"tp\")}"), HasSubstr("{\"b.proj\", Rowwise("),
                    HasSubstr("module \"b.proj\" is \"a.proj\" as well"))));
  // One place twice is refused as ever.
  EXPECT_THAT(
      Apply<Towers>("tp=2", ParallelPlan({{"b.proj", Colwise("tp")}, {"*.proj", Colwise("tp")}})),
      Refuses(HasSubstr("already; keep one of them")));
}

struct Trained {
  std::vector<double> losses, norms;
  Values gradients, values;  // gradients of the first step
};

TensorOr Tokens(Context& context, const DeviceMesh& mesh, int64_t factor) {
  std::vector<int32_t> tokens(4 * 6);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>((i * factor + i / 5) % kVocab);
  return Distribute<int32_t>(context, Layout::Replicated(mesh, 2), {4, 6}, tokens);
}

// Three steps of a tied model, on one rank of a world.
absl::StatusOr<Trained> TrainTied(Context& context, const DeviceMesh& mesh,
                                  const ParallelPlan& plan) {
  Trained trained;
  Tied model;
  model.SetDType(DType::kF64);
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 3, .allow_uneven = true}));
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(model.Parameters(), {}));
  for (int step = 0; step < 3; ++step) {
    const TensorOr loss =
        Mean(CrossEntropy(model(Tokens(context, mesh, 7)), Tokens(context, mesh, 5)), {0, 1});
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
    DT_ASSIGN_OR_RETURN(const ClipResult clip, ClipByGlobalNorm(model.Parameters(), 0.1));
    if (step == 0) {
      DT_ASSIGN_OR_RETURN(trained.gradients, Save(model, /*gradients=*/true));
    }
    DT_RETURN_IF_ERROR(adamw.Step(0.05, clip.scale));
    adamw.ClearGradients();
    DT_ASSIGN_OR_RETURN(trained.losses.emplace_back(), Item(loss->Detach()));
    DT_ASSIGN_OR_RETURN(trained.norms.emplace_back(), Item(clip.norm));
  }
  DT_ASSIGN_OR_RETURN(trained.values, Save(model, /*gradients=*/false));
  return trained;
}

Trained TrainTiedOn(const std::string& mesh_text, const ParallelPlan& plan) {
  Trained trained;
  EXPECT_THAT(RunRanks(DeviceMesh::Parse(mesh_text)->size(),
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
                         DT_ASSIGN_OR_RETURN(Trained mine, TrainTied(context, mesh, plan));
                         if (context.rank() == 0) trained = std::move(mine);
                         return absl::OkStatus();
                       }),
              IsOk())
      << mesh_text;
  return trained;
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b,
                const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-10) << what << " " << i;
}

double SumOfSquaresOf(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return sum;
}

TEST(SharedParameter, TrainsOnEveryMeshAsOnOneRank) {
  const Trained one = TrainTiedOn("tp=1", ParallelPlan());
  EXPECT_LT(one.losses[2], one.losses[0]);
  const ParallelPlan tp({{"embed", Rowwise("tp")}, {"head", Colwise("tp")}});
  ParallelPlan scattered({{"embed", Rowwise("tp", Shard(1))}, {"head", Colwise("tp")}}), both = tp;
  both.Add({"", DataParallel("dp")});
  const struct {
    std::string mesh;
    ParallelPlan plan;
  } cases[] = {{"tp=2", tp},        {"tp=3", tp},        {"tp=2", scattered}, {"tp=5", scattered},
               {"dp=2,tp=2", both}, {"tp=2,dp=3", both}, {"tp=2", {}},        {"dp=4,tp=1", both}};
  for (const auto& [mesh, plan] : cases) {
    const Trained many = TrainTiedOn(mesh, plan);
    const std::string what = mesh + "\n" + plan.ToString();
    ExpectNear(many.losses, one.losses, what);
    ExpectNear(many.norms, one.norms, what);
    for (const auto& [path, values] : one.values) {
      ExpectNear(many.values.at(path), values, what + path);
      ExpectNear(many.gradients.at(path), one.gradients.at(path), what + path);
    }
  }
}

TEST(SharedParameter, CountsOnceInTheNorm) {
  const Trained one = TrainTiedOn("tp=1", ParallelPlan());
  const double shared = SumOfSquaresOf(one.gradients.at("embed.weight")),
               mid = SumOfSquaresOf(one.gradients.at("mid.weight"));
  EXPECT_NEAR(one.norms[0], std::sqrt(shared + mid), 1e-12);
  EXPECT_GT(std::sqrt(2 * shared + mid) - one.norms[0], 1e-3);
}

// The tied gradient is the sum of those that two equal weights would get.
TEST(SharedParameter, CollectsTheGradientsOfAllItsUses) {
  const Trained tied = TrainTiedOn("tp=1", ParallelPlan());
  EXPECT_THAT(
      RunRanks(
          1,
          [&](Context& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
            TiedModel model(kVocab, kDim, false);
            model.SetDType(DType::kF64);
            DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 3));
            DT_ASSIGN_OR_RETURN(const Values first, Save(model, false));
            absl::Status status;
            model.VisitParameters([&](const std::string& path, Parameter& parameter) {
              if (path != "head.weight") return;
              TensorOr copy = Distribute<double>(context, Layout::Replicated(mesh, 2),
                                                 parameter.shape, first.at("embed.weight"));
              status = copy.status();
              if (!status.ok()) return;
              parameter.tensor = *copy;
              status = parameter.tensor.set_requires_grad(true);
            });
            DT_RETURN_IF_ERROR(status);
            DT_RETURN_IF_ERROR(Backward(Mean(
                CrossEntropy(model(Tokens(context, mesh, 7)), Tokens(context, mesh, 5)), {0, 1})));
            DT_ASSIGN_OR_RETURN(Values apart, Save(model, true));
            std::vector<double> sum = apart.at("embed.weight");
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += apart.at("head.weight")[i];
            ExpectNear(tied.gradients.at("embed.weight"), sum, "tied");
            ExpectNear(tied.gradients.at("head.weight"), sum, "tied");
            return absl::OkStatus();
          }),
      IsOk());
}

TEST(SharedModule, RunsOnEveryMeshAsOnOneRank) {
  Values one;
  for (const std::string mesh_text : {"tp=1", "tp=2", "tp=4"}) {
    EXPECT_THAT(RunRanks(DeviceMesh::Parse(mesh_text)->size(),
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
                           Towers model;
                           model.SetDType(DType::kF64);
                           const ParallelPlan plan({{"b.proj", Colwise("tp")}});
                           DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 2}));
                           const RandomOptions random = {.seed = 9, .dtype = DType::kF64};
                           const TensorOr x = RandomNormal(context, Layout::Replicated(mesh, 3),
                                                           {2, 3, kDim}, random);
                           const TensorOr y = model(x);
                           DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2})));
                           DT_RETURN_IF_ERROR(ReduceGradients(model.Parameters()));
                           DT_ASSIGN_OR_RETURN(const Values mine, Save(model, true));
                           if (context.rank() != 0) return absl::OkStatus();
                           if (one.empty()) one = mine;
                           for (const auto& [path, gradient] : one) {
                             ExpectNear(mine.at(path), gradient, mesh_text + path);
                           }
                           return absl::OkStatus();
                         }),
                IsOk());
  }
  EXPECT_EQ(one.size(), 4);
  EXPECT_EQ(one["a.proj.weight"], one["b.proj.weight"]);
}

}  // namespace
}  // namespace dtensor
