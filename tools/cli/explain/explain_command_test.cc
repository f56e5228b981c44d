// Flags, reports and pictures of dtensor explain, on the models that are shipped.
#include "dtensor/tools/cli/explain/explain_command.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tools/cli/explain/explain_json.h"
#include "dtensor/tools/cli/explain/explain_picture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace dtensor::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string Model(const std::string& name) { return "tools/cli/explain/models/" + name + ".json"; }

ExplainFlags Llama7b(const std::string& mesh) {
  ExplainFlags flags;
  flags.model = Model("llama_7b");
  flags.mesh = mesh;
  flags.dtype = "bf16";
  flags.batch = 8;
  flags.sequence = 4096;
  return flags;
}

nlohmann::json JsonOf(const ExplainFlags& flags) {
  const absl::StatusOr<Outcome> outcome = RunExplain(flags, /*json=*/true);
  EXPECT_THAT(outcome, IsOk());
  if (!outcome.ok()) return {};
  return nlohmann::json::parse(outcome->text, nullptr, /*allow_exceptions=*/false);
}

std::string TextOf(const ExplainFlags& flags) {
  const absl::StatusOr<Outcome> outcome = RunExplain(flags, /*json=*/false);
  EXPECT_THAT(outcome, IsOk());
  return outcome.ok() ? outcome->text : "";
}

std::string RefusalOf(const ExplainFlags& flags) {
  return std::string(RunExplain(flags, /*json=*/false).status().message());
}

// 6,738,415,616 parameters; with AdamW a rank holds of each two bytes, two of its gradient, and
// twelve of its states and master.
TEST(Explain, CountsLlama7b) {
  constexpr int64_t kParameters = 6'738'415'616;
  nlohmann::json json = JsonOf(Llama7b("dp=1"));
  EXPECT_EQ(json["memory"]["parameters"], 2 * kParameters);
  EXPECT_EQ(json["memory"]["gradients"], 2 * kParameters);
  EXPECT_EQ(json["memory"]["optimizer"], 12 * kParameters);
  ExplainFlags sharded = Llama7b("dp=8");
  sharded.plan = "fsdp";
  json = JsonOf(sharded);
  EXPECT_EQ(json["memory"]["parameters"], 2 * kParameters / 8);
  EXPECT_EQ(json["memory"]["optimizer"], 12 * kParameters / 8);
}

// 671 billion parameters, and a bias in f32 for each expert of 58 layers.
TEST(Explain, CountsDeepSeekV3) {
  constexpr int64_t kParameters = 671'026'404'352;
  ExplainFlags flags = Llama7b("dp=1");
  flags.model = Model("deepseek_v3");
  flags.recompute = {"model.layers.*"};
  EXPECT_EQ(JsonOf(flags)["memory"]["parameters"], 2 * kParameters + 4 * 58 * 256);
}

// Of 32 layers, A and B of two matrices [4096, 4096]; weights have no gradients.
TEST(Explain, CountsAdapters) {
  ExplainFlags flags = Llama7b("dp=1");
  const int64_t parameters = JsonOf(flags)["memory"]["parameters"];
  flags.lora.rank = 4;
  const nlohmann::json json = JsonOf(flags);
  constexpr int64_t kAdapters = int64_t{32} * 2 * 2 * 4 * 4096;
  EXPECT_EQ(json["memory"]["parameters"], parameters + 2 * kAdapters);
  EXPECT_EQ(json["memory"]["gradients"], 2 * kAdapters);
  EXPECT_EQ(json["memory"]["optimizer"], 12 * kAdapters);
  EXPECT_EQ(json["lora"]["layers"], nlohmann::json({"q_proj", "v_proj"}));
  EXPECT_THAT(TextOf(flags), HasSubstr("adapters   rank 4 of q_proj, v_proj\n"));
  flags.mesh = "tp=2";  // A whole, B by its rows
  EXPECT_EQ(JsonOf(flags)["memory"]["gradients"], 2 * kAdapters * 3 / 4);
  flags.lora.layers = {"c_attn"};
  EXPECT_THAT(RefusalOf(flags), AllOf(StartsWith("--lora-layers: "), HasSubstr("'c_attn'")));
}

// A momentum of each matrix in place of two moments; masters of all. Each matrix is gathered whole
// on one rank, and sent back.
TEST(Explain, CountsMuon) {
  ExplainFlags flags = Llama7b("dp=1");
  constexpr int64_t kLayer = int64_t{4} * 4096 * 4096 + int64_t{3} * 4096 * 11008;
  constexpr int64_t kAll = 6'738'415'616;
  flags.optimizer = "muon";
  EXPECT_EQ(JsonOf(flags)["memory"]["optimizer"], 12 * kAll - 4 * 32 * kLayer);
  flags.mesh = "dp=8";
  flags.plan = "fsdp";
  const nlohmann::json muon = JsonOf(flags);
  flags.optimizer = "adamw";
  const nlohmann::json adamw = JsonOf(flags);
  EXPECT_EQ(muon["memory"]["optimizer"], (12 * kAll - 4 * 32 * kLayer) / 8);
  const auto received = [](const nlohmann::json& json) {
    int64_t bytes = 0;
    for (const nlohmann::json& one : json["update"]["traffic"])
      bytes += one["bytes"].get<int64_t>();
    return bytes;
  };
  EXPECT_NEAR(static_cast<double>(received(muon) - received(adamw)),
              2.0 * 7 / 8 * 4 * 32 * kLayer / 8, 0.01 * kLayer);
}

TEST(Explain, CountsTheStagesOfAPipeline) {
  ExplainFlags flags = Llama7b("pp=4,dp=2");
  flags.micro_batches = 4;
  const nlohmann::json json = JsonOf(flags);
  EXPECT_EQ(json["micro_batches"], 4);
  ASSERT_EQ(json["stages"].size(), 4);
  int64_t parameters = 0;
  double all = 0, slowest = 0, update = 0;
  for (const nlohmann::json& stage : json["stages"]) {
    parameters += stage["parameters"].get<int64_t>();
    all += stage["micro_batch_seconds"].get<double>();
    slowest = std::max(slowest, stage["micro_batch_seconds"].get<double>());
    update = std::max(update, stage["update_seconds"].get<double>());
  }
  EXPECT_EQ(parameters, 2 * int64_t{6'738'415'616});
  EXPECT_NEAR(json["seconds"], all + 3 * slowest + update, 0.01 * all);
  EXPECT_NEAR(json["idle_share"], 3.0 / 7, 0.1);  // (s - 1) / (n + s - 1), were all stages alike
  EXPECT_THAT(TextOf(flags), HasSubstr("4 micro-batches through 4 stages by 1f1b"));
  flags.schedule = "zero_bubble";
  EXPECT_LT(JsonOf(flags)["seconds"], json["seconds"]);
  flags.schedule = "gpipe";
  EXPECT_EQ(RefusalOf(flags), "--schedule: there is no schedule 'gpipe'; take 1f1b or zero_bubble");
  flags.schedule = "1f1b";
  flags.micro_batches = 3;
  EXPECT_EQ(RefusalOf(flags),
            "--micro-batches: 3 do not divide the 8 sequences of --batch; take a divisor of it");
  flags.micro_batches = 9;
  EXPECT_THAT(RefusalOf(flags), StartsWith("--micro-batches: 9 is out of range; take 1 to 8"));
}

// reference/tensor-parallel.md: forward, a block has two all-gathers and two reduce-scatters.
TEST(Explain, CountsWhatSequenceParallelismMoves) {
  const nlohmann::json json = JsonOf(Llama7b("tp=2"));
  constexpr int64_t kHalf = int64_t{8} * 4096 * 4096 * 2 / 2;  // of an activation, in bytes
  int64_t gathers = 0, scatters = 0;
  for (const nlohmann::json& module : json["modules"]) {
    if (!module["path"].is_string() ||
        !absl::StartsWith(module["path"].get<std::string>(), "model.layers.0..31")) {
      continue;
    }
    EXPECT_EQ(module["modules"], 32);
    for (const nlohmann::json& one : module["forward"]["traffic"]) {
      if (one["kind"] == "all-gather") gathers += one["bytes"].get<int64_t>();
      if (one["kind"] == "reduce-scatter") scatters += one["bytes"].get<int64_t>();
    }
  }
  EXPECT_EQ(gathers, 2 * kHalf);
  EXPECT_EQ(scatters, 2 * kHalf);
}

TEST(Explain, NamesThePlanThatItTakes) {
  EXPECT_THAT(TextOf(Llama7b("dp=2,tp=2")), HasSubstr("plan       dp+tp+sp\n"));
}

TEST(Explain, KnowsPlansForGpt2) {
  ExplainFlags flags = Llama7b("dp=2,tp=2");
  flags.model = Model("gpt2");
  flags.sequence = 512;
  for (const char* plan : {"", "tp", "fsdp+tp+sp", "zero1"}) {
    flags.plan = plan;
    EXPECT_THAT(TextOf(flags), HasSubstr("transformer.h.0..11.attn.c_attn.weight x12")) << plan;
  }
  flags.mesh = "cp=2";
  flags.plan = "cp";
  EXPECT_THAT(TextOf(flags), HasSubstr("permute(cp): 12 calls"));
  // It has 1024 positions.
  flags.sequence = 2048;
  EXPECT_THAT(RefusalOf(flags),
              AllOf(StartsWith("--model: transformer.wpe: "), HasSubstr("give shorter ones")));
}

// By the names that GPT-2 has for sizes, or by those that all others have.
std::string SmallModel(const std::string& type) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", type, ".json");
  const char* const sizes =
      type == "gpt2" ? R"("n_embd": 32, "n_layer": 2, "n_head": 8, "n_positions": 64)"
                     : R"("hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
                          "head_dim": 4, "intermediate_size": 64, "max_position_embeddings": 64,
                          "first_k_dense_replace": 1)";
  std::ofstream(path) << R"({"model_type": ")" << type << R"(", "vocab_size": 64, )" << sizes
                      << R"(, "num_key_value_heads": )" << (type == "deepseek_v3" ? 8 : 2) << "}";
  return path;
}

TEST(Explain, KnowsPlansForEveryModel) {
  for (const std::string& type : ModelTypes()) {
    ExplainFlags flags = Llama7b("dp=2,tp=2");
    flags.model = SmallModel(type);
    flags.sequence = 64;
    for (const char* plan : {"", "none", "tp", "fsdp+tp+sp", "zero1"}) {
      flags.plan = plan;
      DT_EXPECT_OK(RunExplain(flags, /*json=*/false)) << type << ' ' << plan;
      DT_EXPECT_OK(RunModel(flags, /*json=*/false)) << type << ' ' << plan;
    }
  }
}

// The mesh that the error names is taken in its place.
TEST(Explain, NamesTheMeshOnWhichRanksShareHeads) {
  ExplainFlags flags = Llama7b("tp=4");
  flags.model = SmallModel("qwen2");
  flags.sequence = 64;
  const std::string refused = RefusalOf(flags);
  EXPECT_THAT(refused, StartsWith("--mesh: preset \"tp+sp\": 2 key/value heads cannot be split"));
  const size_t begin = refused.find("take the mesh ") + 14;
  flags.mesh = refused.substr(begin, refused.find(']') + 1 - begin);
  EXPECT_THAT(TextOf(flags),
              HasSubstr("mesh       [\"tp_kv\"=2, \"tp_rep\"=2; \"tp\"=tp_kv*tp_rep]"));
}

TEST(Explain, TakesModelsWithoutLogits) {
  ExplainFlags flags = Llama7b("tp=2");
  flags.sequence = 512;
  flags.model = ::testing::TempDir() + "/bert.json";
  std::ofstream(flags.model) << R"({"model_type": "bert"})";
  const nlohmann::json json = JsonOf(flags);
  EXPECT_GT(json["memory"]["gradients"], 2 * 100'000'000 / 2);  // two bytes of 109 million each
  EXPECT_GT(json["memory"]["activations"], 0);
  EXPECT_THAT(TextOf(flags), AllOf(HasSubstr("encoder.layer.0..11.attention.self.query x12"),
                                   HasSubstr("pooler.dense")));
}

// 19 layers are more bytes than an int64 counts.
TEST(Explain, RefusesModelsWhoseBytesCannotBeCounted) {
  ExplainFlags flags = Llama7b("tp=1");
  flags.model = ::testing::TempDir() + "/large.json";
  std::ofstream(flags.model) << R"({"model_type": "llama", "vocab_size": 8,
      "hidden_size": 134217728, "intermediate_size": 134217728, "num_hidden_layers": 40})";
  EXPECT_THAT(RefusalOf(flags),
              AllOf(StartsWith("--model: "), HasSubstr("too many to be counted")));
}

TEST(Explain, ComparesTwoPlans) {
  ExplainFlags flags = Llama7b("tp=4");
  flags.plan = "tp";
  flags.compare = "tp+sp";
  const std::string text = TextOf(flags);
  EXPECT_THAT(text, HasSubstr("memory.activations"));
  EXPECT_THAT(text, HasSubstr("forward.reduce-scatter(tp).bytes"));
  EXPECT_THAT(text, Not(HasSubstr("memory.parameters")));  // does not differ
  const nlohmann::json json = JsonOf(flags);
  EXPECT_FALSE(json["figures"].empty());
  for (const nlohmann::json& figure : json["figures"]) {
    EXPECT_EQ(figure["difference"].get<double>(),
              figure["compare"].get<double>() - figure["plan"].get<double>());
  }
}

TEST(Explain, DrawsWhatItSays) {
  Explanation explanation;
  explanation.rank.memory.parameters = 3 << 20;
  explanation.rank.memory.peak = 4 << 20;
  ModuleFigures module;
  module.path = "model.<layers>";
  Of(module.phases, StepPhase::kForward).compute_seconds = 0.5;
  Of(module.phases, StepPhase::kBackward).exposed_seconds = 0.25;
  explanation.modules = {module};
  const std::string svg = DrawExplanation(explanation, "a & b");
  EXPECT_THAT(svg, StartsWith("<svg"));
  EXPECT_THAT(svg, HasSubstr("a &amp; b"));
  EXPECT_THAT(svg, HasSubstr("model.&lt;layers&gt;"));
  EXPECT_THAT(svg, HasSubstr("3.00 MiB"));
  EXPECT_THAT(svg, HasSubstr("750 ms"));
}

TEST(Explain, RefusesInOneLineThatNamesTheFlag) {
  const auto expect = [](const ExplainFlags& flags, const std::string& words) {
    EXPECT_THAT(RefusalOf(flags), AllOf(HasSubstr(words), Not(HasSubstr("\n"))));
  };
  ExplainFlags flags = Llama7b("tp=2");
  flags.model = "/nowhere/config.json";
  expect(flags, "--model: ");
  flags = Llama7b("tp:2");
  expect(flags, "--mesh: ");
  flags = Llama7b("tp=2");
  flags.batch = 0;
  expect(flags, "--batch: 0 is out of range");
  flags.batch = int64_t{1} << 31;
  expect(flags, "more tokens than can be counted");
  flags = Llama7b("tp=2");
  flags.sequence = 4095;
  expect(flags, "--mesh: ");  // whose plan it is, for none was given
  flags.plan = "tp+sp";
  expect(flags, "--plan: ");
  flags = Llama7b("tp=2");
  flags.dtype = "i32";
  expect(flags, "--dtype: 'i32' is no type of a model");
  flags = Llama7b("tp=2");
  flags.optimizer = "adam";
  expect(flags, "--optimizer: there is no 'adam'; take adamw, muon, sgd or none");
  flags = Llama7b("tp=2");
  flags.schedule = "zero_bubble";
  expect(flags, "--schedule: the plan has no stages");
  flags = Llama7b("tp=2");
  flags.plan = "tpp";
  expect(flags, "--plan: ");
  flags = Llama7b("tp=2");
  flags.compare = "/nowhere/plan";
  expect(flags, "--compare: ");
  flags = Llama7b("tp=2");
  flags.recompute = {"layers"};
  expect(flags, "--recompute \"layers\": matches no module");
  flags = Llama7b("tp=2");
  flags.svg = "/nowhere/a.svg";
  expect(flags, "--svg: ");
  flags.compare = "tp";
  expect(flags, "leave --compare out");
}

ExplainFlags ModelFlags(const std::string& model, const std::string& mesh) {
  ExplainFlags flags;
  flags.model_flag = "--config";
  flags.model = Model(model);
  flags.mesh = mesh;
  return flags;
}

nlohmann::json ModelJson(const ExplainFlags& flags) {
  const absl::StatusOr<Outcome> outcome = RunModel(flags, /*json=*/true);
  EXPECT_THAT(outcome, IsOk());
  return outcome.ok() ? nlohmann::json::parse(outcome->text, nullptr, false) : nlohmann::json();
}

TEST(Model, ListsModulesAndFoldsLayers) {
  const nlohmann::json json = ModelJson(ModelFlags("llama_7b", "dp=2,tp=4"));
  EXPECT_EQ(json["batch"], 2);
  EXPECT_EQ(json["seq"], 4096);
  int64_t parameters = 0, modules = 0;
  for (const nlohmann::json& module : json["modules"]) {
    for (const nlohmann::json& own : module["parameters"]) {
      parameters += own["bytes"].get<int64_t>() * module["modules"].get<int64_t>();
    }
    if (module["path"] != "model.layers.0..31.self_attn.q_proj") continue;
    ++modules;
    EXPECT_EQ(module["modules"], 32);
    EXPECT_EQ(module["parameters"][0]["rests"], "R,S(0,unit(128))");
    EXPECT_EQ(module["parameters"][0]["dtype"], "f32");
    EXPECT_EQ(module["edges"][0]["in"], "R");
    EXPECT_EQ(module["edges"][0]["axes"], "tp");
    EXPECT_EQ(module["edges"][0]["out"], nullptr);
  }
  EXPECT_EQ(modules, 1);
  EXPECT_EQ(parameters, json["memory"]["parameters"]);
  EXPECT_GT(json["received_bytes"]["tp"], json["received_bytes"]["dp"]);
}

TEST(Model, TakesUsualSizesWhereNoneAreGiven) {
  ExplainFlags flags = ModelFlags("gpt2", "dp=4");
  EXPECT_EQ(ModelJson(flags)["seq"], 1024);  // its positions
  EXPECT_EQ(ModelJson(flags)["batch"], 4);
  flags.batch = 8;
  flags.sequence = 64;
  EXPECT_EQ(ModelJson(flags)["batch"], 8);
  EXPECT_EQ(ModelJson(flags)["seq"], 64);
  flags.batch = 0;
  EXPECT_THAT(std::string(RunModel(flags, false).status().message()),
              StartsWith("--batch: 0 is out of range"));
  flags = ModelFlags("nowhere", "dp=4");
  EXPECT_THAT(std::string(RunModel(flags, false).status().message()), StartsWith("--config: "));
}

TEST(Model, IsDrawn) {
  ExplainFlags flags = ModelFlags("gpt2", "dp=2,tp=2");
  flags.sequence = 64;
  const std::string listed = RunModel(flags, false)->text;
  flags.picture = true;
  flags.svg = testing::TempDir() + "/plan.svg";
  DT_ASSERT_OK_AND_ASSIGN(const Outcome drawn, RunModel(flags, false));
  EXPECT_THAT(drawn.text, StartsWith(listed));
  EXPECT_THAT(drawn.text.substr(listed.size()),
              HasSubstr("transformer.h.0..11.mlp.c_proj x12\n  weight  [3072, 768] as R,S(0)\n"));
  std::ifstream file(flags.svg);
  const std::string svg((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(svg, AllOf(StartsWith("<svg"), HasSubstr("transformer.h.0..11.mlp.c_proj x12")));
  EXPECT_THAT(std::string(RunModel(flags, true).status().message()),
              StartsWith("--picture and --json both print"));
  flags.svg = "/nowhere/plan.svg";
  EXPECT_THAT(std::string(RunModel(flags, false).status().message()),
              StartsWith("--svg: cannot write"));
}

TEST(Model, SaysWhetherItFits) {
  ExplainFlags flags = ModelFlags("gpt2", "tp=1");
  flags.sequence = 64;
  const int64_t peak = ModelJson(flags)["memory"]["peak"].get<int64_t>();
  flags.memory = peak;
  EXPECT_THAT(RunModel(flags, false)->text, HasSubstr("\nfits       "));
  EXPECT_TRUE(RunModel(flags, false)->ok);
  flags.memory = peak - 1;
  EXPECT_THAT(RunModel(flags, false)->text, HasSubstr("\nTOO LARGE  "));
  EXPECT_FALSE(RunModel(flags, false)->ok);
  const nlohmann::json json = ModelJson(flags);
  EXPECT_EQ(json["fits"], false);
  flags.memory = 0;  // what a script has that found none
  EXPECT_FALSE(RunModel(flags, false)->ok);
  flags.compare = "tp";
  flags.batch = 1;
  EXPECT_THAT(RefusalOf(flags), HasSubstr("--memory: it is of one plan"));
}

}  // namespace
}  // namespace dtensor::cli
