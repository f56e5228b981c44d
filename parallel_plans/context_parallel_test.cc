// Context parallelism is the same attention: wrapped modules and plans give one rank's values and
// gradients, whatever the pattern; and sequences lie where the patterns' table says.
#include "dtensor/parallel_plans/context_parallel.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/context_pattern.h"
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

constexpr const char* kOneAxis[] = {"ring", "zigzag", "striped", "ulysses"};
constexpr const char* kTwoAxes[] = {"double_ring", "ulysses", "ulysses+ring", "ulysses+zigzag",
                                    "ulysses+striped"};

// Where a pattern on "cp" brings a layout; an error's message in its place.
std::string Placed(absl::string_view mesh_text, absl::string_view pattern,
                   absl::string_view layout_text) {
  const DeviceMesh mesh = *DeviceMesh::Parse(mesh_text);
  const auto edges = ContextPattern::Parse(pattern)->EdgesOn(mesh, "cp", false);
  if (!edges.ok()) return std::string(edges.status().message());
  absl::StatusOr<Layout> layout = Layout::Parse(mesh, layout_text);
  for (const ModuleEdge& edge : *edges) {
    if (layout.ok()) layout = layout->WithAxes(edge.axes, *edge.input, edge.position);
  }
  return layout.ok() ? layout->ToString() : std::string(layout.status().message());
}

struct Placing {
  const char *pattern, *alone, *beside_tp;
};

void ExpectPlaced(const std::string& mesh, const Placing& c) {
  const std::string alone = absl::StrCat("[dp] ", c.alone, " []");
  const std::string beside_tp = absl::StrCat("[dp] ", c.beside_tp, " []");
  EXPECT_EQ(Placed(mesh, c.pattern, "[dp] [] []"), alone);
  EXPECT_EQ(Placed(mesh, c.pattern, alone), alone);
  EXPECT_EQ(Placed(mesh, c.pattern, "[dp] [tp] []"), beside_tp);
  EXPECT_EQ(Placed(mesh, c.pattern, beside_tp), beside_tp) << "nothing moves where all is right";
}

TEST(ContextPattern, SplitsTheSequenceBeforeOtherAxes) {
  for (const Placing& c :
       {Placing{"ring", "[cp]", "[cp,tp]"}, Placing{"zigzag", "[cp:zigzag]", "[cp:zigzag,tp]"},
        Placing{"striped", "[_ x 3(cp)]", "[tp x 3(cp)]"}, Placing{"ulysses", "[cp]", "[cp,tp]"}}) {
    ExpectPlaced("dp=2,cp=3,tp=2", c);
    ExpectPlaced("tp=2,cp=3,dp=2", c);
  }
  for (const Placing& c :
       {Placing{"double_ring", "[u:zigzag,r:zigzag]", "[u:zigzag,r:zigzag,tp]"},
        Placing{"ulysses", "[u,r]", "[u,r,tp]"}, Placing{"ulysses+ring", "[r,u]", "[r,u,tp]"},
        Placing{"ulysses+zigzag", "[r:zigzag,u]", "[r:zigzag,u,tp]"},
        Placing{"ulysses+striped", "[u x 3(r)]", "[u,tp x 3(r)]"}}) {
    ExpectPlaced("dp=2,u=2,r=3,tp=2;cp=u*r", c);
  }
}

std::string Pinned(absl::string_view mesh, absl::string_view pattern) {
  AttentionOptions options;
  ContextPattern::Parse(pattern)->Pin(*DeviceMesh::Parse(mesh), "cp", options);
  return absl::StrCat(ToString(options.plan), " ", options.all_to_all);
}

TEST(ContextPattern, PinsItsMethod) {
  for (const char* pattern : {"ring", "zigzag", "striped"}) {
    EXPECT_EQ(Pinned("cp=2,tp=2", pattern), "ring ");
  }
  const std::string group = "tp=2,u=2,r=3;cp=u*r";
  EXPECT_EQ(Pinned(group, "double_ring"), "ring ");
  EXPECT_EQ(Pinned("tp=2,cp=2", "ulysses"), "all-to-all cp");
  EXPECT_EQ(Pinned(group, "ulysses"), "all-to-all u,r");
  for (const char* pattern : {"ulysses+ring", "ulysses+zigzag", "ulysses+striped"}) {
    EXPECT_EQ(Pinned(group, pattern), "all-to-all u");
  }
  // Axes of size 1.
  EXPECT_EQ(Pinned("cp=1", "ulysses"), "ring ");
  EXPECT_EQ(Pinned("u=1,r=2;cp=u*r", "ulysses"), "all-to-all r");
  EXPECT_EQ(Pinned("u=1,r=2;cp=u*r", "ulysses+zigzag"), "ring ");
}

TEST(ContextPattern, RefusesAxesThatDoNotFit) {
  for (const char* pattern : {"ring", "zigzag", "striped"}) {
    EXPECT_THAT(Placed("u=2,r=2;cp=u*r", pattern, "[] []"),
                AllOf(HasSubstr(pattern), HasSubstr("takes one axis"), HasSubstr("double_ring")));
  }
  for (const char* pattern : {"double_ring", "ulysses+zigzag"}) {
    EXPECT_THAT(Placed("cp=4", pattern, "[] []"),
                AllOf(HasSubstr(pattern), HasSubstr("two axes"), HasSubstr("cp=outer*inner")));
  }
  for (const char* pattern : {"double_ring", "ulysses+zigzag", "ulysses"}) {
    EXPECT_THAT(Placed("a=2,b=2,c=2;cp=a*b*c", pattern, "[] []"), HasSubstr("is 3"));
  }
  EXPECT_THAT(Placed("tp=2", "ring", "[] []"), HasSubstr("cp"));
  EXPECT_THAT(ContextPattern::Parse("spiral"),
              Refuses(AllOf(HasSubstr("\"spiral\""), HasSubstr("zigzag, striped, double_ring"))));
}

TransformerConfig Small() {
  TransformerConfig config;
  config.dim = 32;
  config.heads = 8;
  config.kv_heads = 4;
  config.init_stddev = 0.3;
  return config;
}

struct Outcome {
  std::vector<double> y;
  std::string layout;                                    // of y
  std::string forward;                                   // rank 0's traffic: "cp permute; "
  std::map<std::string, std::vector<double>> gradients;  // of parameters; of x at ""
};

struct Case {
  std::string mesh;
  std::string pattern;  // empty: not wrapped
  bool causal = true;
  Placement arrives = Replicate();  // of x on the mesh's first axis
  int64_t sequence = 24;
  bool uneven = false;
  bool by_plan = false;  // the style instead of a wrapper
};

absl::StatusOr<std::unique_ptr<Module>> MakeAttention(const Case& c) {
  auto attention = std::make_unique<GroupedQueryAttention>(Small());
  if (!c.pattern.empty() && !c.by_plan) {
    return ContextParallel::Wrap(std::move(attention), "cp", c.pattern, c.causal, c.uneven);
  }
  attention->attention_options().mask = c.causal ? AttentionMask::Causal() : AttentionMask::Full();
  return attention;
}

absl::Status ReadGradients(Module& module, const DistributedTensor& x, Outcome& outcome) {
  DT_RETURN_IF_ERROR(ReduceGradients(module.Parameters()));
  DT_ASSIGN_OR_RETURN(outcome.gradients[""], ToGlobal<double>(x.grad()));
  absl::Status status;
  module.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (!status.ok()) return;
    auto values = ToGlobal<double>(parameter.tensor.grad());
    status = values.status();
    if (status.ok()) outcome.gradients[path] = *std::move(values);
  });
  return status;
}

// y = attention(x), and the gradients of the sum of y^2.
absl::Status RunCase(Context& context, const Case& c, Outcome& outcome) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> module, MakeAttention(c));
  module->SetDType(DType::kF64);
  ParallelPlan plan;
  if (c.by_plan) plan.Add({"", ContextParallel("cp", c.pattern)});
  if (mesh.Find("tp").ok()) {
    plan.Add({"{q,k,v}_proj", Colwise("tp")});
    plan.Add({"o_proj", Rowwise("tp")});
  }
  DT_RETURN_IF_ERROR(plan.Apply(*module, context, mesh, {.seed = 3, .allow_uneven = c.uneven}));
  Placements arrives(mesh.num_axes());
  arrives[0] = c.arrives;
  DT_ASSIGN_OR_RETURN(DistributedTensor x, RandomNormal(context, mesh, arrives, {2, c.sequence, 32},
                                                        {.seed = 9, .dtype = DType::kF64}));
  DT_RETURN_IF_ERROR(x.set_requires_grad(true));
  context.communicator().ResetTraffic();
  const TensorOr y = (*module)(x);
  DT_RETURN_IF_ERROR(y.status());
  Outcome mine;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    absl::StrAppend(&mine.forward, key.first, " ", ToString(key.second), "; ");
  }
  mine.layout = y->layout().ToString();
  DT_ASSIGN_OR_RETURN(mine.y, ToGlobal<double>(y->Detach()));
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(y, y), {0, 1, 2})));
  DT_RETURN_IF_ERROR(ReadGradients(*module, x, mine));
  if (context.rank() == 0) outcome = std::move(mine);
  return absl::OkStatus();
}

absl::Status RunOn(const Case& c, Outcome& outcome) {
  return RunRanks(DeviceMesh::Parse(c.mesh)->size(),
                  [&](Context& context) { return RunCase(context, c, outcome); });
}

void ExpectSame(const Case& c, const Outcome& reference) {
  const std::string what = absl::StrCat(c.mesh, " ", c.pattern, c.causal ? " causal" : " full");
  Outcome run;
  ASSERT_THAT(RunOn(c, run), IsOk()) << what;
  EXPECT_LE(RelativeRms(run.y, reference.y), 1e-12) << what;
  ASSERT_EQ(run.gradients.size(), reference.gradients.size()) << what;
  for (const auto& [path, gradient] : reference.gradients) {
    ASSERT_EQ(run.gradients.count(path), 1) << what << " " << path;
    EXPECT_LE(RelativeRms(run.gradients.at(path), gradient), 1e-12) << what << " " << path;
  }
  EXPECT_EQ(run.layout, Placed(c.mesh, c.pattern, "[] [] []")) << what;
}

TEST(Wrap, EveryPatternIsTheModuleOnOneRank) {
  for (const bool causal : {true, false}) {
    Outcome reference;
    ASSERT_THAT(RunOn({"cp=1", "", causal}, reference), IsOk());
    ASSERT_EQ(reference.gradients.size(), 5);
    for (const char* pattern : kOneAxis) {
      for (const char* mesh : {"cp=1", "cp=2", "cp=4"}) {
        ExpectSame({mesh, pattern, causal}, reference);
        ExpectSame({mesh, pattern, causal, Shard(1)}, reference);
        ExpectSame({mesh, pattern, causal, Shard(2)}, reference);
      }
      if (std::string(pattern) != "ulysses") ExpectSame({"cp=3", pattern, causal}, reference);
    }
    for (const char* pattern : kTwoAxes) {
      ExpectSame({"u=2,r=2;cp=u*r", pattern, causal}, reference);
    }
    ExpectSame({"outer=2,inner=3;cp=outer*inner", "double_ring", causal}, reference);
    ExpectSame({"u=1,r=2;cp=u*r", "ulysses+zigzag", causal}, reference);
    ExpectSame({"u=2,r=1;cp=u*r", "ulysses+zigzag", causal}, reference);
  }
}

// x is replicated, so what moves is attention's alone.
TEST(Wrap, RunsAttentionByThePatternAsTheStyleDoes) {
  struct CommunicatorTraffic {
    const char *mesh, *pattern, *forward;
  };
  const char* group = "u=2,r=2;cp=u*r";
  const char* both = "r permute; u all-to-all; ";
  for (const CommunicatorTraffic& c : {CommunicatorTraffic{"cp=2", "ring", "cp permute; "},
                                       CommunicatorTraffic{"cp=4", "zigzag", "cp permute; "},
                                       CommunicatorTraffic{"cp=4", "striped", "cp permute; "},
                                       CommunicatorTraffic{"cp=4", "ulysses", "cp all-to-all; "},
                                       CommunicatorTraffic{group, "double_ring", "u,r permute; "},
                                       CommunicatorTraffic{group, "ulysses", "u,r all-to-all; "},
                                       CommunicatorTraffic{group, "ulysses+ring", both},
                                       CommunicatorTraffic{group, "ulysses+zigzag", both},
                                       CommunicatorTraffic{group, "ulysses+striped", both}}) {
    for (const bool by_plan : {false, true}) {
      Outcome run;
      Case one = {c.mesh, c.pattern};
      one.by_plan = by_plan;
      ASSERT_THAT(RunOn(one, run), IsOk());
      EXPECT_EQ(run.forward, c.forward) << c.mesh << " " << c.pattern << " " << by_plan;
    }
  }
}

// A wrapper changes no paths, so a plan finds the projections inside.
TEST(Wrap, GoesWithTensorParallelism) {
  Outcome reference;
  ASSERT_THAT(RunOn({"cp=1", ""}, reference), IsOk());
  for (const char* pattern : kOneAxis) {
    ExpectSame({"cp=2,tp=2", pattern}, reference);
    ExpectSame({"tp=2,cp=2", pattern, true, Shard(1)}, reference);
  }
}

TEST(Wrap, TakesUnevenSequencesWhereAllowed) {
  for (const char* pattern : {"ring", "zigzag", "striped"}) {
    Case c = {"cp=3", pattern};
    c.sequence = 22;
    Outcome reference, unused;
    ASSERT_THAT(RunOn({"cp=1", "", true, Replicate(), c.sequence}, reference), IsOk());
    EXPECT_THAT(RunOn(c, unused), Refuses(AllOf(HasSubstr("[2, 22, 32]"), HasSubstr("split 3 ways"),
                                                HasSubstr("a multiple of "))));
    c.uneven = true;
    ExpectSame(c, reference);
  }
}

// What ranks hold is not in order. Were their sequences taken for positions 0, 1, ... as they lie,
// the answer would be another; so the test above can see whether RoPE and mask use positions.
TEST(Wrap, PositionsThatLieInAnotherOrderGiveAnotherAnswer) {
  constexpr int64_t kLength = 8, kDim = 32;
  const std::vector<int64_t> zigzag = {0, 1, 6, 7, 2, 3, 4, 5};  // of rank 0, then of rank 1
  std::vector<double> in_order, by_place;
  EXPECT_THAT(
      RunRanks(1,
               [&](Context& context) -> absl::Status {
                 const Layout whole = Layout::Replicated(*DeviceMesh::Parse("cp=1"), 3);
                 DT_ASSIGN_OR_RETURN(const auto module, MakeAttention({"cp=1", "", false}));
                 module->SetDType(DType::kF64);
                 DT_RETURN_IF_ERROR(module->Materialize(context, whole.mesh(), 3));
                 DT_ASSIGN_OR_RETURN(const auto x, RandomNormal(context, whole, {1, kLength, kDim},
                                                                {.seed = 9, .dtype = DType::kF64}));
                 DT_ASSIGN_OR_RETURN(const std::vector<double> values, ToGlobal<double>(x));
                 std::vector<double> placed;
                 for (const int64_t position : zigzag) {
                   const auto row = values.begin() + position * kDim;
                   placed.insert(placed.end(), row, row + kDim);
                 }
                 DT_ASSIGN_OR_RETURN(const auto y, (*module)(x));
                 DT_ASSIGN_OR_RETURN(in_order, ToGlobal<double>(y));
                 DT_ASSIGN_OR_RETURN(
                     const auto wrong,
                     (*module)(Distribute<double>(context, whole, {1, kLength, kDim}, placed)));
                 DT_ASSIGN_OR_RETURN(by_place, ToGlobal<double>(wrong));
                 return absl::OkStatus();
               }),
      IsOk());
  std::vector<double> back(by_place.size());
  for (int64_t i = 0; i < kLength; ++i) {
    std::copy_n(by_place.begin() + i * kDim, kDim, back.begin() + zigzag[i] * kDim);
  }
  EXPECT_GT(RelativeRms(back, in_order), 1e-2);
}

TEST(Wrap, RefusesWhatDoesNotFit) {
  EXPECT_THAT(ContextParallel::Wrap(nullptr, "cp", "ring", true).status(),
              Refuses(HasSubstr("no module to wrap")));
  EXPECT_THAT(
      ContextParallel::Wrap(std::make_unique<GroupedQueryAttention>(Small()), "cp", "spiral", true)
          .status(),
      Refuses(HasSubstr("choose ring, zigzag")));
  Outcome unused;
  EXPECT_THAT(RunOn({"tp=2", "ring"}, unused), Refuses(HasSubstr("cp")));
  EXPECT_THAT(RunOn({"cp=2", "double_ring"}, unused), Refuses(HasSubstr("two axes")));
}

// --- In plans.

class Norms : public Module {
 public:
  Norms() : first_(8), second_(8) {
    AddChild("first", &first_);
    AddChild("second", &second_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return second_(first_(x)); }

 private:
  RmsNormLayer first_, second_;
};

absl::StatusOr<std::string> LayoutAfter(Context& context, absl::string_view mesh_text,
                                        const ParallelPlan& plan, int64_t sequence) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  Norms norms;
  DT_RETURN_IF_ERROR(plan.Apply(norms, context, mesh, {}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, norms(Full(context, Layout::Replicated(mesh, 3),
                                                            {4, sequence, 8}, DType::kF32, 1)));
  return y.layout().ToString();
}

absl::StatusOr<std::string> LayoutAfter(absl::string_view mesh, const ParallelPlan& plan,
                                        int64_t sequence) {
  std::string layout;
  DT_RETURN_IF_ERROR(RunRanks(DeviceMesh::Parse(mesh)->size(), [&](Context& context) {
    auto after = LayoutAfter(context, mesh, plan, sequence);
    if (after.ok() && context.rank() == 0) layout = *after;
    return after.status();
  }));
  return layout;
}

TEST(Plan, SplitsByContextThenBySequenceParallelismInEitherOrderOfLines) {
  const ParallelPlan::Line cp = {"{first,second}", ContextParallel("cp", "zigzag")};
  const ParallelPlan::Line tp = {"{first,second}", SequenceParallel("tp")};
  const ParallelPlan::Line dp = {"", DataParallel("dp")};
  for (const char* mesh : {"dp=2,cp=2,tp=2", "tp=2,cp=2,dp=2"}) {
    for (const ParallelPlan& plan : {ParallelPlan({cp, tp, dp}), ParallelPlan({dp, tp, cp})}) {
      EXPECT_THAT(LayoutAfter(mesh, plan, 8), IsOkAndHolds("[dp] [cp:zigzag,tp] []"));
    }
  }
}

TEST(Plan, RefusesSequencesThatItsAxesDoNotSplitEvenly) {
  const ParallelPlan zigzag({{"", ContextParallel("cp", "zigzag")}});
  EXPECT_THAT(LayoutAfter("cp=2", zigzag, 6), Refuses(HasSubstr("choose a multiple of 4")));
  EXPECT_THAT(LayoutAfter("cp=2", zigzag, 8), IsOkAndHolds("[] [cp:zigzag] []"));
  const ParallelPlan with_tp(
      {{"", ContextParallel("cp", "zigzag")}, {"second", SequenceParallel("tp")}});
  EXPECT_THAT(LayoutAfter("cp=2,tp=3", with_tp, 16), Refuses(HasSubstr("a multiple of 12")));
  EXPECT_THAT(LayoutAfter("cp=2,tp=3", with_tp, 24), IsOkAndHolds("[] [cp:zigzag,tp] []"));
  const ParallelPlan striped(
      {{"", ContextParallel("cp", "striped")}, {"second", SequenceParallel("tp")}});
  EXPECT_THAT(LayoutAfter("cp=2,tp=3", striped, 16), Refuses(HasSubstr("a multiple of 6")));
  EXPECT_THAT(LayoutAfter("cp=2,tp=3", striped, 18), IsOkAndHolds("[] [tp x 2(cp)] []"));
}

TEST(Plan, NamesTheLineOfAPatternThatDoesNotFit) {
  EXPECT_THAT(LayoutAfter("cp=2", ParallelPlan({{"", ContextParallel("cp", "spiral")}}), 8),
              Refuses(AllOf(HasSubstr("plan line {\"\", ContextParallel(\"cp\", \"spiral\")}"),
                            HasSubstr("choose ring"))));
  EXPECT_THAT(LayoutAfter("cp=2", ParallelPlan({{"", ContextParallel("cp", "")}}), 8),
              Refuses(HasSubstr("there is no pattern \"\"")));
  EXPECT_THAT(LayoutAfter("cp=2", ParallelPlan({{"", ContextParallel("cp", "double_ring")}}), 8),
              Refuses(AllOf(HasSubstr("plan line"), HasSubstr("two axes"))));
}

}  // namespace
}  // namespace dtensor
