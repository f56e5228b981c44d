#include "dtensor/parallel_plans/presets.h"

#include <fstream>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceMesh Mesh(absl::string_view text) { return *DeviceMesh::Parse(text); }

auto Refuses(const std::string& words) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
}

TEST(PresetPlan, JoinsWhatItsPartsSay) {
  ParallelPlan plan = TensorParallelPlan("tp", /*sequence_parallel=*/true);
  plan.Add(FullyShardPlan("dp"));
  plan.Add(ContextParallelPlan("cp", "ring"));
  const PresetOptions ring = {.context_pattern = "ring"};
  EXPECT_THAT(PresetPlan("fsdp+cp+tp+sp", Mesh("dp=2,cp=2,tp=2"), ring), IsOkAndHolds(plan));
  EXPECT_THAT(PresetPlan("sp+tp+cp+fsdp", Mesh("tp=2,cp=2,dp=2"), ring), IsOkAndHolds(plan));
  EXPECT_THAT(PresetPlan("zero1", Mesh("dp=2")), IsOkAndHolds(FullyShardPlan("dp", 1)));
  EXPECT_THAT(PresetPlan("zero2", Mesh("dp=2")), IsOkAndHolds(FullyShardPlan("dp", 2)));
  EXPECT_THAT(PresetPlan("none", Mesh("tp=2")), IsOkAndHolds(ParallelPlan()));
}

TEST(PresetPlan, AxesThatItDoesNotMentionDoAsTheyAreCalled) {
  const DeviceMesh mesh = Mesh("dp=2,cp=2,tp=2");
  DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan plan, PresetPlan("dp+cp+tp", mesh));
  EXPECT_THAT(PresetPlan("tp", mesh), IsOkAndHolds(plan));
  DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan none, PresetPlan("none", Mesh("dp=2,tp=2")));
  EXPECT_EQ(none, ParallelPlan({{"", DataParallel("dp")}}));
}

TEST(PresetPlan, HybridCopiesOverTheOuterAxisAndShardsOverTheInner) {
  ParallelPlan plan({{"", DataParallel("copies")}});
  plan.Add(FullyShardPlan("shards"));
  EXPECT_THAT(PresetPlan("hsdp", Mesh("copies=2,shards=2;dp=copies*shards")), IsOkAndHolds(plan));
  EXPECT_THAT(PresetPlan("hsdp", Mesh("dp=4")).status(), Refuses("a group of two axes"));
}

TEST(PresetPlan, KeysAreSplitWhereTheAxisIsCutForThem) {
  const DeviceMesh mesh = Mesh("tp_kv=2,tp_rep=2;tp=tp_kv*tp_rep");
  EXPECT_THAT(PresetPlan("tp+sp", mesh),
              IsOkAndHolds(TensorParallelPlan("tp", true, {"tp_kv", "tp_rep"})));
}

TEST(PresetPlan, RefusesWhatCannotBe) {
  const DeviceMesh mesh = Mesh("dp=2,tp=2");
  EXPECT_THAT(PresetPlan("fspd+tp", mesh).status(), Refuses("did you mean fsdp?"));
  EXPECT_THAT(PresetPlan("", mesh).status(), Refuses("there is no \"\""));
  EXPECT_THAT(PresetPlan("tp+", mesh).status(), Refuses("there is no \"\""));
  EXPECT_THAT(PresetPlan("best", mesh).status(),
              Refuses("zero1, zero2, fsdp, hsdp, cp, tp, sp, none"));
  EXPECT_THAT(PresetPlan("dp+fsdp", mesh).status(), Refuses("dp and fsdp exclude one another"));
  EXPECT_THAT(PresetPlan("tp+tp", mesh).status(), Refuses("tp and tp exclude one another"));
  EXPECT_THAT(PresetPlan("none+tp", mesh).status(), Refuses("none and tp exclude one another"));
  EXPECT_THAT(PresetPlan("sp", mesh).status(), Refuses("write tp+sp"));
  EXPECT_THAT(PresetPlan("cp+tp", mesh).status(), Refuses("cp wants an axis cp"));
  EXPECT_THAT(PresetPlan("tp", Mesh("dp=2")).status(), Refuses("tp wants an axis tp"));
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=2,pp=2")).status(), Refuses("no use for the axis 'pp'"));
  EXPECT_THAT(PresetPlan("cp", Mesh("cp=2"), {.context_pattern = "spiral"}).status(),
              Refuses("spiral"));
  EXPECT_THAT(PresetPlan("cp", Mesh("cp=2"), {.context_pattern = "double_ring"}).status(),
              Refuses("two axes"));
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=2"), {.model_type = "mamba"}).status(),
              Refuses("\"mamba\"; there are those for bert, gpt2, llama"));
}

// A small model of each type that there are plans for.
constexpr struct {
  const char *type, *config;
} kModels[] = {
    {"bert", R"({"model_type": "bert", "vocab_size": 16, "max_position_embeddings": 16,
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64})"},
    {"gpt2", R"({"model_type": "gpt2", "vocab_size": 16, "n_positions": 16, "n_embd": 16,
        "n_layer": 2, "n_head": 4})"},
    {"llama", R"({"model_type": "llama", "vocab_size": 16, "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64})"},
};

// Each places a whole model, with memory for every parameter.
TEST(PresetNames, AllApply) {
  const std::vector<std::string> names = PresetNames();
  EXPECT_EQ(names.size(), 36);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  const DeviceMesh mesh = Mesh("a=2,b=2,cp=2,tp=2;dp=a*b");
  for (const auto& [type, config] : kModels) {
    for (const std::string& name : names) {
      DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan plan,
                              PresetPlan(name, mesh, {.model_type = type}));
      EXPECT_THAT(ParallelPlan::Parse(plan.ToString()), IsOkAndHolds(plan)) << type << ' ' << name;
      DT_EXPECT_OK(Simulate(0, mesh.size(),
                            [&](Context& context) -> absl::Status {
                              DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model,
                                                  ModelFromJson(config));
                              return plan.Apply(*model, context, mesh, {});
                            }))
          << type << ' ' << name;
    }
  }
}

TEST(DefaultPreset, MentionsTheAxesThatThereAre) {
  EXPECT_EQ(DefaultPreset(Mesh("tp=2,dp=2")), "dp+tp+sp");
  EXPECT_EQ(DefaultPreset(Mesh("cp=2")), "cp");
  EXPECT_EQ(DefaultPreset(Mesh("pp=2")), "none");
}

TEST(NamedPlan, ReadsFiles) {
  const std::string path = ::testing::TempDir() + "/plan";
  const std::string good = "{\"mlp\", Colwise(\"tp\")}\n";
  std::ofstream(path) << good;
  EXPECT_THAT(NamedPlan(path, Mesh("x=2")), IsOkAndHolds(ParallelPlan({{"mlp", Colwise("tp")}})));
  std::ofstream(path) << good << "\n{\"mlp\", Rowwise(\"tp\", out Q)}\n";
  EXPECT_THAT(NamedPlan(path, Mesh("x=2")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path + ": plan line 3, "), HasSubstr("column 27"))));
  EXPECT_THAT(NamedPlan("nowhere.plan", Mesh("x=2")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nowhere.plan")));
  EXPECT_THAT(NamedPlan("tp", Mesh("tp=2")), IsOkAndHolds(TensorParallelPlan("tp", false)));
}

// So nothing stands for both.
TEST(IsPlanFile, NoNameIsOne) {
  for (const std::string& name : PresetNames()) EXPECT_FALSE(IsPlanFile(name)) << name;
  for (const char* path : {"a.plan", "./tp", "/tmp/x", "plans/tp+sp", ".."}) {
    EXPECT_TRUE(IsPlanFile(path)) << path;
  }
}

}  // namespace
}  // namespace dtensor
