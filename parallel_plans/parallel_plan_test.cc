#include "dtensor/parallel_plans/parallel_plan.h"

#include <string>
#include <vector>

#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/expert_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Mlp : public Module {
 public:
  Mlp() : norm_(8), up_(8, 12, 0.5, {.out = 4}), down_(12, 8, 0.5, {.in = 4}) {
    AddChild("norm", &norm_);
    AddChild("up", &up_);
    AddChild("down", &down_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return down_(Silu(up_(norm_(x)))); }

 private:
  RmsNormLayer norm_;
  LinearLayer up_, down_;
};

// Applies `plan` to an Mlp on every rank, and returns the first error.
absl::Status Apply(int ranks, absl::string_view mesh_text, const ParallelPlan& plan,
                   const ParallelPlanOptions& options = {}) {
  return RunRanks(ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
    Mlp mlp;
    return plan.Apply(mlp, context, mesh, options);
  });
}

TEST(ParallelPlan, PlacesParametersAndEdges) {
  const ParallelPlan plan({{"norm", SequenceParallel("tp")},
                           {"up", Colwise("tp")},
                           {"down", Rowwise("tp", Shard(1))},
                           {"", DataParallel("dp")}});
  EXPECT_THAT(RunRanks(6,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2,tp=3"));
                         Mlp mlp;
                         DT_RETURN_IF_ERROR(plan.Apply(mlp, context, mesh, {}));
                         EXPECT_EQ(Explain(mlp),
                                   "(model): in S(0) on dp\n"
                                   "norm: weight [8] as []; in S(1) on tp; out S(1) on tp\n"
                                   "up: weight [12, 8] as [tp x 4] []; in R on tp\n"
                                   "down: weight [8, 12] as [] [tp x 4]; out S(1) on tp\n");
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(ParallelPlan, PrintsItsLines) {
  const ParallelPlan plan({{"up", Colwise("tp")}, {"down", Rowwise("tp", Shard(1))}});
  EXPECT_EQ(plan.ToString(), "{\"up\", Colwise(\"tp\")}\n{\"down\", Rowwise(\"tp\", out S(1))}");
}

TEST(ParallelPlan, ParsesWhatItPrints) {
  std::vector<ParallelPlan> plans = {ParallelPlan()};
  for (const std::string pattern : {"", "model.layers.*.{q,k}_proj", "a\"b\\c, \n}", "né"}) {
    for (const ParallelStyle& style : std::vector<ParallelStyle>{
             Colwise("tp"),
             Rowwise("tp"),
             Rowwise("tp", Shard(-1, ShardOrder::Unit(4))),
             DataParallel(""),
             SequenceParallel("t\"p"),
             Edges("tp", std::nullopt, std::nullopt),
             Edges("tp", Shard(1), std::nullopt),
             Edges("tp", std::nullopt, Replicate()),
             Edges("tp", Shard(0, ShardOrder::Unit(2)), Partial()),
             Edges("cp", Shard(1, ShardOrder::Zigzag()), Shard(1, ShardOrder::Block(4))),
             ContextParallel("cp", "zigzag"),
             ContextParallel("c\"p", ""),
             Colwise("tp", Replicate()),
             Rowwise("tp", Replicate(), Shard(-1)),
             Rowwise("tp", Shard(1), Replicate()),
             VocabParallel("tp"),
             VocabParallel("tp", Shard(1)),
             ExpertParallel("ep", Shard(0)),
             ExpertParallel("ep", Replicate(), Shard(1)),
             ExpertTensorParallel("tp", Shard(1)),
             Replicated("tp"),
             ShardParameters("tp"),
             PrepareInput("tp", {}),
             PrepareInput("tp", {Shard(1), std::nullopt, Replicate()}),
             PrepareInput("tp", EachPlacement({{"memory", Shard(1)}, {"x", Replicate()}})),
             PrepareOutput("tp", {Shard(-1)}),
             PrepareOutput("tp", EachPlacement({{"bias", Shard(0, ShardOrder::Unit(2))}}))}) {
      plans.push_back(ParallelPlan({{pattern, style}}));
    }
  }
  ParallelPlan all;
  for (const ParallelPlan& plan : plans) {
    for (const ParallelPlan::Line& line : plan.lines()) all.Add(line);
  }
  plans.push_back(all);
  for (const ParallelPlan& plan : plans) {
    EXPECT_THAT(ParallelPlan::Parse(plan.ToString()), IsOkAndHolds(plan)) << plan.ToString();
    for (const ParallelPlan& other : plans) {
      EXPECT_EQ(plan == other, plan.ToString() == other.ToString());
    }
  }
}

TEST(ParallelPlan, ParsesBlanks) {
  EXPECT_THAT(ParallelPlan::Parse("\n  { \"up\" , Rowwise( \"tp\" , out  S( 1 ) ) } \n\n"),
              IsOkAndHolds(ParallelPlan({{"up", Rowwise("tp", Shard(1))}})));
}

TEST(ParallelPlan, ParseRefusesOtherTextsNamingTheLine) {
  for (const std::string line :
       {"up", "{up, Colwise(\"tp\")}", "{\"up\", Colwise(tp)}", "{\"up\", Colwise(\"tp\")",
        "{\"up\", Columns(\"tp\")}", "{\"up\", Colwise(\"tp\", in R)}", "{\"up\", Colwise(\"tp)}",
        "{\"up\", Rowwise(\"tp\", out 2)}", "{\"up\", Rowwise(\"tp\", out Q)}",
        "{\"up\", ContextParallel(\"cp\")}", "{\"up\", ContextParallel(\"cp\", zigzag)}",
        "{\"up\", Edges(\"tp\", out R, out R)}", "{\"up\", Colwise(\"tp\", out \"R\")}",
        "{\"up\", PrepareInput(\"tp\", x R, S(1))}", "{\"up\", PrepareInput(\"tp\", x R, x R)}",
        "{\"up\", PrepareInput(\"tp\", x -)}", "{\"up\", SequenceParallel(\"tp\", 1)}",
        "{\"up\", Colwise(\"tp\")} x", "{\"up\\"}) {
    EXPECT_THAT(ParallelPlan::Parse("{\"ok\", Colwise(\"tp\")}\n" + line),
                Refuses(HasSubstr("plan line 2, " + line + ":")))
        << line;
  }
}

TEST(ParallelPlan, ParseNamesTheColumnAndTheStyles) {
  EXPECT_THAT(ParallelPlan::Parse("  {\"up\", Rowwise(\"tp\", out Q)}"),
              Refuses(AllOf(HasSubstr("from column 28 on"), HasSubstr("VocabParallel"))));
  EXPECT_THAT(
      ParallelPlan::Parse("{\"up\", Columns(\"tp\")}"),
      Refuses(AllOf(HasSubstr("column 8: there is no style Columns"), HasSubstr("Colwise"))));
  EXPECT_THAT(ParallelPlan::Parse("{\"up\", Colwise(\"tp\", in R)}"),
              Refuses(HasSubstr("column 8: Colwise does not take the argument in R")));
}

// A style of a user's own, which plans' text may hold: as style_text.h shows.
struct Halves {
  std::string axis;
  int64_t parts = 2;
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite&) const { return StyleWishes(); }
  std::string ToString() const { return StyleText{"Halves", axis, {{"parts", parts}}}.ToString(); }
  static absl::StatusOr<ParallelStyle> Read(const StyleText& text) {
    ArgumentReader arguments(text);
    Halves style{text.axis, arguments.TakeNumber("parts").value_or(2)};
    DT_RETURN_IF_ERROR(arguments.Done());
    return style;
  }
  friend bool operator==(const Halves&, const Halves&) = default;
};

TEST(ParallelPlan, ParsesAUsersStyle) {
  const ParallelPlan plan({{"a", Halves{"tp", 3}}, {"b", Colwise("tp")}});
  const std::string text = plan.ToString();
  EXPECT_THAT(ParallelPlan::Parse(text, {{"Halves", Halves::Read}}), IsOkAndHolds(plan));
  EXPECT_THAT(ParallelPlan::Parse(plan.ToString()), Refuses(HasSubstr("no style Halves")));
  const std::string wrong = "{\"a\", Halves(\"tp\", parts S(1))}";
  EXPECT_THAT(ParallelPlan::Parse(wrong, {{"Halves", Halves::Read}}),
              Refuses(HasSubstr("does not take the argument parts S(1)")));
}

TEST(ParallelPlan, RefusesAPatternThatMatchesNothing) {
  EXPECT_THAT(
      Apply(1, "tp=1", ParallelPlan({{"upp", Colwise("tp")}})),
      Refuses(AllOf(HasSubstr("{\"upp\", Colwise(\"tp\")}"), HasSubstr("nearest is \"up\""))));
  EXPECT_THAT(Apply(1, "tp=1", ParallelPlan({{"{up,down", Colwise("tp")}})),
              Refuses(HasSubstr("a '{' is not closed")));
}

TEST(ParallelPlan, RefusesTwoLinesForOneModuleAndAxis) {
  EXPECT_THAT(Apply(1, "tp=1", ParallelPlan({{"up", Colwise("tp")}, {"*", Rowwise("tp")}})),
              Refuses(HasSubstr("are set by the line {\"up\", Colwise(\"tp\")} already")));
}

TEST(ParallelPlan, RefusesAnUnknownAxis) {
  EXPECT_THAT(Apply(1, "tp=1", ParallelPlan({{"up", Colwise("cp")}})),
              Refuses(AllOf(HasSubstr("Colwise(\"cp\")"), HasSubstr("tp"))));
}

TEST(ParallelPlan, RefusesAStyleThatMeansNothing) {
  EXPECT_THAT(Apply(1, "tp=1", ParallelPlan({{"norm", Colwise("tp")}})),
              Refuses(HasSubstr("use SequenceParallel or Edges")));
}

TEST(ParallelPlan, RefusesAMeshOfAnotherSize) {
  EXPECT_THAT(Apply(2, "tp=4", ParallelPlan({{"up", Colwise("tp")}})),
              Refuses(HasSubstr("4 ranks where the world has 2")));
}

TEST(ParallelPlan, RefusesUnevenSplitsUnlessAllowed) {
  const ParallelPlan plan({{"up", Colwise("tp")}});  // 3 units of 4 on 2 ranks
  EXPECT_THAT(Apply(2, "tp=2", plan),
              Refuses(AllOf(HasSubstr("dimension 0 of up.weight, 12 (3 units of 4)"),
                            HasSubstr("of size 2"), HasSubstr("allow uneven"))));
  EXPECT_THAT(Apply(2, "tp=2", plan, {.allow_uneven = true}), IsOk());
}

// Each axis alone divides the three units; together they do not.
TEST(ParallelPlan, RefusesUnevenSplitsOverTwoLines) {
  const ParallelPlan plan({{"up", Colwise("a")}, {"up", Colwise("b")}});
  EXPECT_THAT(
      Apply(9, "a=3,b=3", plan),
      Refuses(AllOf(HasSubstr("of size 3 after 3 shards of other lines"), HasSubstr("divide 3"))));
  EXPECT_THAT(Apply(9, "a=3,b=3", plan, {.allow_uneven = true}), IsOk());
}

TEST(ParallelPlan, RefusesUnevenActivationsUnlessAllowed) {
  for (const bool allowed : {false, true}) {
    const absl::Status status = RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
      Mlp mlp;
      const ParallelPlan plan({{"norm", SequenceParallel("tp")}});
      DT_RETURN_IF_ERROR(plan.Apply(mlp, context, mesh, {.allow_uneven = allowed}));
      return mlp(Full(context, Layout::Replicated(mesh, 3), {2, 5, 8}, DType::kF32, 1)).status();
    });
    if (allowed) {
      EXPECT_THAT(status, IsOk());
    } else {
      EXPECT_THAT(status, Refuses(AllOf(HasSubstr("norm: dimension 1"), HasSubstr("[2, 5, 8]"),
                                        HasSubstr("allow uneven"))));
    }
  }
}

TEST(ParallelPlan, FirstValuesAreTheSameOnEveryMesh) {
  const ParallelPlan plan({{"up", Colwise("tp")}, {"down", Rowwise("tp")}});
  std::vector<float> reference;
  for (const int ranks : {1, 2, 3}) {
    EXPECT_THAT(RunRanks(ranks,
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                                               DeviceMesh::Parse("tp=" + std::to_string(ranks)));
                           Mlp mlp;
                           DT_RETURN_IF_ERROR(
                               plan.Apply(mlp, context, mesh, {.seed = 7, .allow_uneven = true}));
                           std::vector<float> all;
                           for (const DistributedTensor& parameter : mlp.Parameters()) {
                             DT_ASSIGN_OR_RETURN(const std::vector<float> values,
                                                 ToGlobal<float>(parameter));
                             all.insert(all.end(), values.begin(), values.end());
                           }
                           if (context.rank() != 0) return absl::OkStatus();
                           if (reference.empty()) reference = all;
                           EXPECT_EQ(all, reference);
                           EXPECT_NE(all[8], all[9]);
                           return absl::OkStatus();
                         }),
                IsOk());
  }
}

TEST(ParallelPlan, RefusesEdgesThatNoActivationCanHave) {
  for (const Placement& placement : {Partial(), Shard(0, ShardOrder::Cyclic(2))}) {
    for (const ParallelStyle& style : std::vector<ParallelStyle>{
             Edges("tp", placement, {}), Edges("tp", {}, placement), Rowwise("tp", placement)}) {
      EXPECT_THAT(Apply(1, "tp=1", ParallelPlan({{"up", style}})),
                  Refuses(AllOf(HasSubstr("plan line {\"up\", " + style.ToString()),
                                HasSubstr("as " + placement.ToString() + " by a plan"))));
    }
  }
}

TEST(ParallelPlan, RefusesParametersThatHaveMemory) {
  const ParallelPlan plan({{"up", Colwise("tp")}});
  for (const bool materialized : {false, true}) {
    EXPECT_THAT(RunRanks(1,
                         [&](Context& context) -> absl::Status {
                           DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
                           Mlp mlp;
                           if (materialized) {
                             DT_RETURN_IF_ERROR(mlp.Materialize(context, mesh, 1));
                           } else {
                             DT_RETURN_IF_ERROR(plan.Apply(mlp, context, mesh, {}));
                           }
                           const TensorImpl* before = mlp.Parameters()[0].impl().get();
                           const absl::Status again = plan.Apply(mlp, context, mesh, {});
                           EXPECT_EQ(mlp.Parameters()[0].impl().get(), before);
                           return again;
                         }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("parameter norm.weight has memory already")));
  }
}

// Modules in modules, of which the innermost refuses.
class Nest : public Module {
 public:
  Nest() { AddChild("inner", &inner_); }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return inner_(x); }

 private:
  Mlp inner_;
};
class Nests : public Module {
 public:
  Nests() { AddChild("outer", &outer_); }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return outer_(x); }

 private:
  Nest outer_;
};

TEST(Module, RefusalsNameTheInnermostModuleOnce) {
  EXPECT_THAT(
      RunRanks(1,
               [&](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
                 Nests nests;
                 DT_RETURN_IF_ERROR(ParallelPlan().Apply(nests, context, mesh, {}));
                 EXPECT_THAT(nests(DistributedTensor()),
                             Refuses(HasSubstr("operand is undefined")));
                 return nests(Full(context, Layout::Replicated(mesh, 2), {2, 7}, DType::kF32, 1))
                     .status();
               }),
      Refuses(testing::StartsWith("rank 0: outer.inner.norm: RmsNorm: ")));
}

TEST(Module, AParameterWithoutMemoryIsNamedWithTheRemedy) {
  EXPECT_THAT(RunRanks(1,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
                         const Layout whole = Layout::Replicated(mesh, 2);
                         const TensorOr x = Full(context, whole, {2, 8}, DType::kF32, 1);
                         Nests nests;
                         EXPECT_THAT(
                             nests(x).status(),
                             StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("parameter outer.inner.norm.weight has no "),
                                            HasSubstr("apply a plan"), HasSubstr("Materialize"))));
                         DT_RETURN_IF_ERROR(nests.Materialize(context, mesh, 1));
                         return nests(x).status();
                       }),
              IsOk());
}

}  // namespace
}  // namespace dtensor
