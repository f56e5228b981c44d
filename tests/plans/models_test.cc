// GPT-2, BERT, and Transformers with latent attention and with adapters, under plans: results,
// gradients and weights after steps of AdamW or Muon are those of one rank on every mesh, with
// dropout, recomputed and fully sharded. Forward moves what Megatron's counts say, although
// queries, keys and values come from one weight.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/lora.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/tests/plans/model_runs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

template <typename Config>
Config Small() {
  Config config;
  config.vocab = 13;
  config.positions = 12;
  config.dim = 16;
  config.layers = 2;
  config.heads = 8;
  config.hidden = 24;
  config.norm_eps = 1e-5;
  config.init_stddev = 0.3;
  return config;
}
Gpt2Config SmallGpt2() {
  Gpt2Config config = Small<Gpt2Config>();
  config.scale_by_layer = true;
  return config;
}

TestedModel TestedGpt2(const Gpt2Config& config = SmallGpt2()) {
  return Tested<Gpt2>(config, "transformer.h.*");
}
TestedModel TestedBert(const BertConfig& config = Small<BertConfig>()) {
  return Tested<BertModel>(config, "encoder.layer.*");
}
// DeepSeek's attention, with dense MLPs: dropout and experts are others' business.
TestedModel TestedLatent() {
  TransformerConfig config;
  config.vocab = 13, config.dim = 16, config.layers = 2, config.hidden = 24;
  config.heads = config.kv_heads = 8;
  config.kv_lora_rank = 5, config.q_lora_rank = 6;
  config.head_size = 6, config.rotary_dim = 4, config.v_head_dim = 3;
  config.rope_interleaved = true;
  config.init_stddev = 0.3;
  return Tested<Transformer>(config, "model.layers.*");
}
// Of which the adapters train alone.
TestedModel TestedAdapted() {
  TransformerConfig config;
  config.vocab = 13, config.dim = 16, config.layers = 2, config.hidden = 24;
  config.heads = 8, config.kv_heads = 4, config.qkv_bias = true;
  config.init_stddev = 0.3;
  TestedModel tested = Tested<Transformer>(config, "model.layers.*");
  tested.make = [config] {
    auto model = std::make_unique<Transformer>(config);
    DT_EXPECT_OK(AddLora(
        *model, {.rank = 3,
                 .dropout = 0.2,
                 .layers = {"q_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "lm_head"}}));
    return model;
  };
  return tested;
}

class Models : public ::testing::TestWithParam<TestedModel (*)()> {
 protected:
  // Of one rank, by what a run may depend on.
  const ModelOutcome& Reference(const ModelRun& run) {
    ModelRun one = run;
    one.mesh = "tp=1";
    one.sequence_parallel = one.recompute = one.uneven = false;
    ModelOutcome& outcome =
        references_[{run.steps, run.muon, run.training, run.sequence, run.dtype}];
    if (outcome.results.empty()) {
      auto made = RunModel(tested_, one);
      DT_EXPECT_OK(made);
      if (made.ok()) outcome = *std::move(made);
    }
    return outcome;
  }

  void ExpectAsOnOneRank(const ModelRun& run, const ModelTolerance& tolerance = {}) {
    if (!SuiteHasRanks(DeviceMesh::Parse(run.mesh)->size())) return;
    const auto outcome = RunModel(tested_, run);
    DT_ASSERT_OK(outcome) << run.mesh;
    EXPECT_EQ(Difference(*outcome, Reference(run), tolerance), "")
        << run.mesh << " sequence_parallel " << run.sequence_parallel << " recompute "
        << run.recompute << " level " << run.fully_shard;
  }

  const TestedModel tested_ = GetParam()();
  std::map<std::tuple<int, bool, bool, int64_t, DType>, ModelOutcome> references_;
};

INSTANTIATE_TEST_SUITE_P(All, Models,
                         ::testing::Values([] { return TestedGpt2(); }, [] { return TestedBert(); },
                                           TestedLatent, TestedAdapted));

TEST_P(Models, AreThoseOfOneRankOnEveryMesh) {
  for (const std::string mesh : {"tp=1,dp=1", "tp=2", "tp=4", "dp=2,tp=2"}) {
    ExpectAsOnOneRank({.mesh = mesh, .sequence_parallel = false});
    ExpectAsOnOneRank({.mesh = mesh, .steps = 5});
  }
  for (const std::string mesh : {"dp=4", "cp=2", "tp=8", "dp=2,cp=2,tp=2"}) {
    ExpectAsOnOneRank({.mesh = mesh});
  }
}

// Heads, hidden features, words and tokens that do not divide.
TEST_P(Models, AreThoseOfOneRankWhereNothingDivides) {
  for (const int64_t sequence : {7, 1}) {
    for (const std::string mesh : {"tp=3", "dp=3"}) {
      ExpectAsOnOneRank({.mesh = mesh, .uneven = true, .sequence = sequence});
    }
  }
}

TEST_P(Models, AreThoseOfOneRankFullySharded) {
  for (const int level : {1, 2, 3}) {
    ExpectAsOnOneRank({.mesh = "fsdp=2,tp=2", .fully_shard = level, .steps = 5});
  }
  ExpectAsOnOneRank({.mesh = "fsdp=3", .uneven = true, .steps = 5});
  ExpectAsOnOneRank({.mesh = "dp=2,fsdp=2,tp=2", .recompute = true});
}

// Each matrix whole on one rank, however it is sharded.
TEST_P(Models, AreThoseOfOneRankByMuon) {
  for (const std::string mesh : {"tp=4", "dp=2,tp=2", "fsdp=2,tp=2", "fsdp=2"}) {
    ExpectAsOnOneRank({.mesh = mesh, .steps = 2, .muon = true});
  }
  ExpectAsOnOneRank({.mesh = "fsdp=3", .uneven = true, .steps = 2, .muon = true});
}

TEST_P(Models, DropOutTheSameWhereTheyRunAgain) {
  ExpectAsOnOneRank({.mesh = "tp=2", .recompute = true});
  ExpectAsOnOneRank({.mesh = "cp=2,tp=2", .recompute = true});
}

TEST_P(Models, DropOutWhileTheyTrainAlone) {
  ExpectAsOnOneRank({.mesh = "dp=2,tp=2", .training = false});
  if (GetParam() == TestedLatent) return;  // it has no dropout
  EXPECT_NE(Difference(Reference({.training = false}), Reference({}), {.error = 1e-3}), "");
}

TEST_P(Models, AreNearlyThoseOfOneRankInBf16) {
  ExpectAsOnOneRank({.mesh = "dp=2,tp=2", .training = false, .dtype = DType::kBF16},
                    {.error = 0.05, .floor = 1});
}

std::map<std::string, int64_t> ForwardOf(const TestedModel& tested, bool sequence_parallel) {
  const auto outcome =
      RunModel(tested, {.mesh = "tp=4", .sequence_parallel = sequence_parallel, .training = false});
  DT_EXPECT_OK(outcome);
  return outcome.ok() ? CallsOf(outcome->forward) : std::map<std::string, int64_t>();
}

// Two of each in a block, and those of the embedding and the head.
TEST(Gpt2, MovesWhatMegatronMoves) {
  EXPECT_THAT(ForwardOf(TestedGpt2(), false), ElementsAre(Pair("tp all-reduce", 2 * 2 + 1)));
  EXPECT_THAT(ForwardOf(TestedGpt2(), true),
              ElementsAre(Pair("tp all-gather", 2 * 2 + 1), Pair("tp reduce-scatter", 2 * 2 + 1)));
}

// The pooler gathers its result, and with sequence parallelism the tokens.
TEST(Bert, MovesWhatMegatronMoves) {
  EXPECT_THAT(ForwardOf(TestedBert(), false),
              ElementsAre(Pair("tp all-gather", 1), Pair("tp all-reduce", 2 * 2 + 1)));
  EXPECT_THAT(ForwardOf(TestedBert(), true),
              ElementsAre(Pair("tp all-gather", 2 * 2 + 2), Pair("tp reduce-scatter", 2 * 2 + 1)));
}

TEST(Gpt2, MayHaveAHeadOfItsOwn) {
  Gpt2Config config = SmallGpt2();
  config.tie_embeddings = false;
  const auto one = RunModel(TestedGpt2(config), {.mesh = "tp=1", .steps = 5});
  const auto four = RunModel(TestedGpt2(config), {.mesh = "tp=4", .steps = 5});
  DT_ASSERT_OK(one);
  DT_ASSERT_OK(four);
  EXPECT_EQ(Difference(*four, *one), "");
  EXPECT_TRUE(one->gradients.contains("lm_head.weight"));
}

// What a rank has of q, k and v together: its heads of each.
TEST(Gpt2, SplitsOneWeightForThreeByHeads) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    Gpt2 model(SmallGpt2());
    DT_RETURN_IF_ERROR(ApplyTensorParallel(model, context, *DeviceMesh::Parse("tp=4")).status());
    std::map<std::string, std::string> layouts;
    model.VisitParameters([&](const std::string& path, Parameter& parameter) {
      layouts[path] = parameter.tensor.layout().ToString();
    });
    EXPECT_EQ(layouts["transformer.h.1.attn.c_attn.weight"], "[] [_ x 8(tp) x 2]");
    EXPECT_EQ(layouts["transformer.h.1.attn.c_attn.bias"], "[_ x 8(tp) x 2]");
    EXPECT_EQ(layouts["transformer.h.1.attn.c_proj.weight"], "[tp x 2] []");
    EXPECT_EQ(layouts["transformer.h.1.mlp.c_fc.weight"], "[] [tp]");
    EXPECT_EQ(layouts["transformer.wte.weight"], "[tp] []");
    return absl::OkStatus();
  }));
}

absl::Status ApplyOn(int ranks, const Gpt2Config& config) {
  return RunRanks(ranks, [&](Context& context) -> absl::Status {
    Gpt2 model(config);
    const DeviceMesh mesh = *DeviceMesh::Parse(absl::StrCat("tp=", ranks));
    return ApplyTensorParallel(model, context, mesh).status();
  });
}

TEST(Gpt2, RefusesHeadsThatCannotBeSplit) {
  EXPECT_THAT(ApplyOn(3, SmallGpt2()),
              Refuses(AllOf(HasSubstr("c_attn"), HasSubstr("each of 3 pieces"),
                            HasSubstr("8 units of 2"))));
}

TEST(LearnedPositions, RefuseMoreTokensThanPositions) {
  for (const TestedModel& tested : {TestedGpt2(), TestedBert()}) {
    EXPECT_THAT(RunModel(tested, {.sequence = 13}).status(),
                Refuses(AllOf(HasSubstr("learned positions [12, 16]"), HasSubstr("at most 12"))));
  }
}

}  // namespace
}  // namespace dtensor
