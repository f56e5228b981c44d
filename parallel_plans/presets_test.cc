#include "dtensor/parallel_plans/presets.h"

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/parallel_plans/model_plan.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
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
              Refuses("zero1, zero2, fsdp, hsdp, ep, cp, pp, tp, sp, none"));
  EXPECT_THAT(PresetPlan("dp+fsdp", mesh).status(), Refuses("dp and fsdp exclude one another"));
  EXPECT_THAT(PresetPlan("tp+tp", mesh).status(), Refuses("tp and tp exclude one another"));
  EXPECT_THAT(PresetPlan("none+tp", mesh).status(), Refuses("none and tp exclude one another"));
  EXPECT_THAT(PresetPlan("sp", mesh).status(), Refuses("write tp+sp"));
  EXPECT_THAT(PresetPlan("cp+tp", mesh).status(), Refuses("cp wants an axis cp"));
  EXPECT_THAT(PresetPlan("tp", Mesh("dp=2")).status(), Refuses("tp wants an axis tp"));
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=2,xp=2")).status(), Refuses("no use for the axis 'xp'"));
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=2,ep=2")).status(), Refuses("the model has none"));
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=2,pp=2")).status(), Refuses("blocks is not known"));
  EXPECT_THAT(PresetPlan("pp", Mesh("pp=3"), {.blocks = 2}).status(), Refuses("has 2 blocks"));
  EXPECT_THAT(PresetPlan("cp", Mesh("cp=2"), {.context_pattern = "spiral"}).status(),
              Refuses("spiral"));
  EXPECT_THAT(PresetPlan("cp", Mesh("cp=2"), {.context_pattern = "double_ring"}).status(),
              Refuses("two axes"));
  EXPECT_THAT(
      PresetPlan("tp", Mesh("tp=2"), {.model_type = "mamba"}).status(),
      Refuses("\"mamba\"; there are those for bert, gpt2, deepseek_v3, gemma, gemma3_text, "
              "glm4_moe, gpt_oss, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe"));
}

// A small model, by the names that GPT-2 has for sizes, or by those that all others have.
std::string ConfigOf(absl::string_view type, int kv_heads) {
  const std::string begin = absl::StrCat(R"({"vocab_size": 16, "model_type": ")", type, "\", ");
  if (type == "gpt2") {
    return absl::StrCat(begin, R"("n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 4})");
  }
  return absl::StrCat(begin, R"("max_position_embeddings": 16, "hidden_size": 16,
      "first_k_dense_replace": 1,
      "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 4, "intermediate_size": 64,
      "num_key_value_heads": )",
                      kv_heads, "}");
}

// Gives every parameter memory.
absl::Status Place(const ParallelPlan& plan, const std::string& config, const DeviceMesh& mesh) {
  return Simulate(0, mesh.size(), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Module> model, ModelFromJson(config));
    return plan.Apply(*model, context, mesh, {});
  });
}

TEST(PlannedModels, AreAllModelTypes) {
  std::vector<std::string> planned;
  for (const internal::PlannedModel& model : internal::PlannedModels()) {
    planned.emplace_back(model.type);
  }
  EXPECT_EQ(planned, ModelTypes());
}

// Each plan can be read again from its text, and applied to a model of the type.
void ExpectAllApply(const std::vector<std::string>& names, const DeviceMesh& mesh,
                    const std::string& type) {
  const std::string config = ConfigOf(type, 4);
  DT_ASSERT_OK_AND_ASSIGN(const PresetOptions options, PresetOptionsFor(config));
  for (const std::string& name : names) {
    DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan plan, PresetPlan(name, mesh, options));
    EXPECT_THAT(ParallelPlan::Parse(plan.ToString()), IsOkAndHolds(plan)) << type << ' ' << name;
    DT_EXPECT_OK(Place(plan, config, mesh)) << type << ' ' << name;
  }
}

// By a name or by options, a model's plan is the same.
void ExpectAsByOptions(const std::string& name, const DeviceMesh& mesh, const std::string& type) {
  const std::string config = ConfigOf(type, 4);
  DT_ASSERT_OK_AND_ASSIGN(const PresetOptions options, PresetOptionsFor(config));
  DT_ASSERT_OK_AND_ASSIGN(const TensorParallelism planned, PlanTensorParallel(config, mesh));
  EXPECT_THAT(PresetPlan(name, mesh, options), IsOkAndHolds(planned.plan)) << type;
}

void ExpectDistinct(const std::vector<std::string>& names, size_t count) {
  EXPECT_EQ(names.size(), count);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), count);
}

TEST(PresetNames, AllApplyToAllModels) {
  const std::vector<std::string> names = PresetNames();
  ExpectDistinct(names, 72);
  EXPECT_GE(ModelTypes().size(), 6);
  for (const std::string& type : ModelTypes()) {
    ExpectAllApply(names, Mesh("pp=2,a=2,b=2,cp=2,tp=2;dp=a*b"), type);
    ExpectAsByOptions("dp+pp+tp+sp", Mesh("dp=2,pp=2,tp=2"), type);
  }
}

TEST(PresetNames, ApplyToModelsWithExperts) {
  const std::vector<std::string> names = PresetNames(/*with_experts=*/true);
  ExpectDistinct(names, 144);
  for (const std::string type :
       {"deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"}) {
    ExpectAllApply(names, Mesh("pp=2,a=2,b=2,ep=2,cp=2,tp=2;dp=a*b"), type);
    ExpectAllApply({"ep", "ep+tp+sp"}, Mesh("a=2,b=2,tp=2;ep=a*b"), type);
    ExpectAsByOptions("dp+ep+tp+sp", Mesh("dp=2,ep=2,tp=2"), type);
  }
}

TEST(PresetOptionsFor, SaysWhatTheModelIs) {
  DT_ASSERT_OK_AND_ASSIGN(const PresetOptions qwen, PresetOptionsFor(ConfigOf("qwen3", 2)));
  EXPECT_EQ(qwen.model_type, "qwen3");
  ASSERT_TRUE(qwen.transformer.has_value());
  EXPECT_EQ(qwen.transformer->kv_heads, 2);
  DT_ASSERT_OK_AND_ASSIGN(const PresetOptions gpt2, PresetOptionsFor(ConfigOf("gpt2", 2)));
  EXPECT_FALSE(gpt2.transformer.has_value());
  EXPECT_THAT(PresetOptionsFor(ConfigOf("mamba", 2)).status(), Refuses("model_type"));
}

// What stands between two words of an error.
std::string Between(const absl::Status& status, const std::string& before, char after) {
  const std::string text(status.message());
  const size_t begin = text.find(before);
  if (begin == std::string::npos) return "";
  const size_t end = text.find(after, begin);
  return text.substr(begin + before.size(), end - begin - before.size() + 1);
}

// 2 heads of keys on 4 ranks: the remedy is a mesh, which can be given in its place.
TEST(PresetPlan, NamesTheMeshOnWhichRanksShareHeads) {
  const std::string config = ConfigOf("mistral", 2);
  DT_ASSERT_OK_AND_ASSIGN(PresetOptions options, PresetOptionsFor(config));
  const DeviceMesh given = Mesh("dp=2,tp=4");
  for (const char* name : {"tp", "tp+sp", "fsdp+tp+sp"}) {
    const absl::Status refused = PresetPlan(name, given, options).status();
    EXPECT_THAT(refused, Refuses("2 key/value heads cannot be split over the 4 ranks of \"tp\""));
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh named,
                            DeviceMesh::Parse(Between(refused, "take the mesh ", ']')));
    EXPECT_EQ(named, Mesh("dp=2,tp_kv=2,tp_rep=2;tp=tp_kv*tp_rep"));
    DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan plan, PresetPlan(name, named, options));
    DT_EXPECT_OK(Place(plan, config, named));
  }
  DT_EXPECT_OK(PresetPlan("none", given, options));
  DT_EXPECT_OK(PresetPlan("tp", Mesh("dp=4,tp=2"), options));
  // No mesh helps where not even queries have a head for each rank.
  DT_ASSERT_OK_AND_ASSIGN(const ParallelPlan wide, PresetPlan("tp", Mesh("tp=8"), options));
  EXPECT_THAT(Place(wide, config, Mesh("tp=8")), Refuses("q_proj"));
  options.allow_uneven = true;
  EXPECT_THAT(PresetPlan("tp", Mesh("tp=4"), options),
              IsOkAndHolds(TensorParallelPlan("tp", false)));
}

TEST(DefaultPreset, MentionsTheAxesThatThereAre) {
  EXPECT_EQ(DefaultPreset(Mesh("tp=2,dp=2")), "dp+tp+sp");
  EXPECT_EQ(DefaultPreset(Mesh("cp=2")), "cp");
  EXPECT_EQ(DefaultPreset(Mesh("pp=2")), "pp");
  EXPECT_EQ(DefaultPreset(Mesh("ep=2,dp=2,tp=2")), "dp+ep+tp+sp");
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
