// The configuration of a gpt_oss: what is read, with the defaults of Hugging Face's class, and what
// is refused.
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string GptOss(absl::string_view more) {
  return absl::StrCat(R"({"model_type": "gpt_oss")", more.empty() ? "" : ", ", more, "}");
}

TEST(GptOssConfig, HasTheDefaultsOfTheClass) {
  const auto config = TransformerConfig::FromJson(GptOss(R"("num_hidden_layers": 4)"));
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->vocab, 201088);
  EXPECT_EQ(config->heads * config->head_dim(), 4096);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->hidden, 2880);
  EXPECT_EQ(config->experts, 128);
  EXPECT_EQ(config->experts_per_token, 4);
  EXPECT_EQ(config->expert_clamp, (SwiGluClamp{1.702, 7}));
  EXPECT_TRUE(config->attention_sinks && config->qkv_bias && config->o_bias);
  EXPECT_FALSE(config->tie_embeddings);
  EXPECT_EQ(config->window, 128);
  EXPECT_THAT(config->full_layers, ElementsAre(1, 3));
  EXPECT_EQ(config->rope_theta, 150000);
  EXPECT_EQ(config->rope_scaling.factor, 32);
  EXPECT_EQ(config->rope_scaling.transition, RopeTransition::kByPairs);
  EXPECT_DOUBLE_EQ(config->rope_scaling.amplitude, 0.1 * std::log(32) + 1);
}

TEST(GptOssConfig, ReadsWhatFilesSay) {
  const auto config = TransformerConfig::FromJson(GptOss(
      R"("hidden_size": 64, "num_hidden_layers": 2, "num_local_experts": 32, "swiglu_limit": 5.5,
         "swiglu_alpha": 1, "attention_bias": false, "sliding_window": 16,
         "layer_types": ["full_attention", "sliding_attention"], "rope_theta": 1000,
         "rope_scaling": {"rope_type": "linear", "factor": 2}, "hidden_act": "silu")"));
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->experts, 32);
  EXPECT_EQ(config->expert_clamp, (SwiGluClamp{1, 5.5}));
  EXPECT_FALSE(config->qkv_bias || config->o_bias);
  EXPECT_EQ(config->window, 16);
  EXPECT_THAT(config->full_layers, ElementsAre(0));
  EXPECT_EQ(config->rope_scaling.factor, 2);
  EXPECT_EQ(config->rope_scaling.transition, RopeTransition::kByTurns);
}

TEST(GptOssConfig, MayBeOfFilesInMxfp4) {
  constexpr absl::string_view kMxfp4 = R"("quantization_config": {"quant_method": "mxfp4"})";
  EXPECT_THAT(TransformerConfig::FromJson(GptOss(kMxfp4)), IsOk());
  EXPECT_THAT(TransformerConfig::FromJson(absl::StrCat(R"({"model_type": "llama", )", kMxfp4, "}")),
              Refuses(HasSubstr("quant_method is \"mxfp4\"")));
}

TEST(GptOssConfig, RefusesWhatIsOtherwise) {
  const auto refuses = [](absl::string_view member, absl::string_view name) {
    EXPECT_THAT(TransformerConfig::FromJson(GptOss(member)), Refuses(HasSubstr(name)));
  };
  refuses(R"("swiglu_limit": 0)", "swiglu_limit");
  refuses(R"("rope_theta": 1)", "rope_theta");  // of the scaling that it has by default
  refuses(R"("sliding_window": null)", "sliding_window");
  refuses(R"("layer_types": ["full_attention"])", "layer_types");
  refuses(R"("hidden_act": "gelu")", "hidden_act");
  refuses(R"("attention_dropout": 0.5)", "attention_dropout");
  refuses(R"("quantization_config": {"quant_method": "gptq"})", "gpt_oss in MXFP4");
}

TEST(GptOssConfig, IsNotMixedWithWhatItHasNot) {
  const auto refuses = [](const std::function<void(TransformerConfig&)>& set,
                          absl::string_view why) {
    TransformerConfig config;
    config.experts = 4;
    config.expert_clamp = SwiGluClamp();
    EXPECT_TRUE(config.Validate().ok());
    set(config);
    EXPECT_THAT(config.Validate(), Refuses(HasSubstr(why)));
  };
  refuses([](auto& c) { c.experts = 0; }, "expert_clamp is set, and there are no experts");
  refuses([](auto& c) { c.router_score = RouterScore::kSigmoid; }, "router_score is set");
  refuses([](auto& c) { c.shared_hidden = 8; }, "shared_hidden is set");
  refuses([](auto& c) { c.mixtral_names = true; }, "mixtral_names is set");
  refuses([](auto& c) { c.expert_clamp->limit = NAN; }, "limit nan");
  refuses([](auto& c) { c.expert_clamp->limit = -1; }, "limit -1");
  refuses([](auto& c) { c.expert_clamp->slope = INFINITY; }, "slope inf");
  refuses(
      [](auto& c) {
        c.kv_lora_rank = 4, c.v_head_dim = 4, c.rotary_dim = 2, c.kv_heads = 8;
        c.attention_sinks = true;
      },
      "attention_sinks is set, which latent attention has not");
}

// Names and shapes of a layer's parameters are those of the files.
TEST(GptOssConfig, NamesParametersAsFilesDo) {
  TransformerConfig config;
  config.dim = 8, config.layers = 1, config.heads = 4, config.kv_heads = 2, config.hidden = 6;
  config.experts = 3, config.qkv_bias = config.o_bias = config.attention_sinks = true;
  config.expert_clamp = SwiGluClamp();
  Transformer model(config);
  std::map<std::string, Dims> shapes;
  model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    for (const StoredPart& part : StoredPartsOf(path, parameter)) shapes[part.name] = part.shape;
  });
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shapes[layer + "self_attn.sinks"], (Dims{4}));
  EXPECT_EQ(shapes[layer + "mlp.router.weight"], (Dims{3, 8}));
  EXPECT_EQ(shapes[layer + "mlp.router.bias"], (Dims{3}));
  EXPECT_EQ(shapes[layer + "mlp.experts.gate_up_proj"], (Dims{3, 8, 12}));
  EXPECT_EQ(shapes[layer + "mlp.experts.gate_up_proj_bias"], (Dims{3, 12}));
  EXPECT_EQ(shapes[layer + "mlp.experts.down_proj"], (Dims{3, 6, 8}));
  EXPECT_EQ(shapes[layer + "mlp.experts.down_proj_bias"], (Dims{3, 8}));
  EXPECT_EQ(shapes.size(), 20u);
}

}  // namespace
}  // namespace dtensor
