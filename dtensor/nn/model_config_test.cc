// Configurations as Hugging Face writes them: what is read, what is refused by name, and malformed
// text.
#include "dtensor/nn/model_config.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/bert.h"
#include "dtensor/nn/gpt2.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Llama(absl::string_view more) {
  return absl::StrCat(R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48)",
                      more.empty() ? "" : ", ", more, "}");
}

TEST(TransformerConfig, IsReadFromLlamasFile) {
  const auto config = TransformerConfig::FromJson(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": [2, 3], "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 8192, "initializer_range": 0.01, "intermediate_size": 28672,
    "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
    "id2label": {"0": {"rope_theta": [[1, {"a": 2}], 3]}}, "vocab_size": 128256})");
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->vocab, 128256);
  EXPECT_EQ(config->dim, 8192);
  EXPECT_EQ(config->layers, 80);
  EXPECT_EQ(config->heads, 64);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->mlp_hidden(), 28672);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->norm_eps, 1e-5);
  EXPECT_EQ(config->init_stddev, 0.01);
  EXPECT_TRUE(config->tie_embeddings);
}

// The first LLaMA, whose file may be all but empty.
TEST(TransformerConfig, HasHuggingFacesDefaults) {
  const auto config = TransformerConfig::FromJson(R"({"num_key_value_heads": null})");
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->vocab, 32000);
  EXPECT_EQ(config->dim, 4096);
  EXPECT_EQ(config->layers, 32);
  EXPECT_EQ(config->kv_heads, 32);
  EXPECT_EQ(config->mlp_hidden(), 11008);
  EXPECT_EQ(config->norm_eps, 1e-6);
  EXPECT_FALSE(config->tie_embeddings);
}

TEST(TransformerConfig, ReadsRopeWhereNewFilesHaveIt) {
  const auto config = TransformerConfig::FromJson(
      Llama(R"("rope_parameters": {"rope_theta": 7.5, "rope_type": "default"})"));
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->rope_theta, 7.5);
}

TEST(TransformerConfig, ReadsBiasesAndHeadSizes) {
  const auto config = TransformerConfig::FromJson(Llama(R"("attention_bias": true, "mlp_bias": true,
                                           "head_dim": 16)"));
  DT_ASSERT_OK(config);
  EXPECT_TRUE(config->qkv_bias && config->o_bias && config->mlp_bias);
  EXPECT_EQ(config->head_dim(), 16);
  EXPECT_EQ(config->window, 0);
}

TEST(TransformerConfig, ReadsWhatLlamasKinHave) {
  const auto mistral = TransformerConfig::FromJson(R"({"model_type": "mistral"})");
  DT_ASSERT_OK(mistral);
  EXPECT_EQ(mistral->window, 4096);
  EXPECT_EQ(mistral->first_window_layer, 0);
  EXPECT_EQ(mistral->kv_heads, 8);
  EXPECT_EQ(mistral->hidden, 14336);
  EXPECT_FALSE(mistral->qkv_bias);
  const auto unbounded =
      TransformerConfig::FromJson(R"({"model_type": "mistral", "sliding_window": null,
                                      "num_key_value_heads": null})");
  DT_ASSERT_OK(unbounded);
  EXPECT_EQ(unbounded->window, 0);
  EXPECT_EQ(unbounded->kv_heads, 32);
  const auto qwen2 = TransformerConfig::FromJson(
      R"({"model_type": "qwen2", "sliding_window": 7, "attention_bias": false})");
  DT_ASSERT_OK(qwen2);
  EXPECT_TRUE(qwen2->qkv_bias) << "whatever other members say";
  EXPECT_FALSE(qwen2->o_bias);
  EXPECT_EQ(qwen2->window, 0) << "there is one only where it is used";
  const auto qwen3 = TransformerConfig::FromJson(
      R"({"model_type": "qwen3", "sliding_window": 7, "use_sliding_window": true,
          "max_window_layers": 0})");
  DT_ASSERT_OK(qwen3);
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_EQ(qwen3->head_dim(), 128);
  EXPECT_EQ(qwen3->window, 7);
  EXPECT_EQ(qwen3->first_window_layer, 0);
}

TEST(TransformerConfig, ReadsMixturesOfExperts) {
  const auto mixtral = TransformerConfig::FromJson(R"({"model_type": "mixtral"})");
  DT_ASSERT_OK(mixtral);
  EXPECT_EQ(mixtral->experts, 8);
  EXPECT_EQ(mixtral->experts_per_token, 2);
  EXPECT_EQ(mixtral->hidden, 14336);
  EXPECT_EQ(mixtral->norm_eps, 1e-5);
  EXPECT_EQ(mixtral->rope_theta, 1e6);
  EXPECT_EQ(mixtral->window, 0);
  EXPECT_TRUE(mixtral->normalize_experts && mixtral->mixtral_names);
  const auto qwen = TransformerConfig::FromJson(R"({"model_type": "qwen3_moe"})");
  DT_ASSERT_OK(qwen);
  EXPECT_EQ(qwen->dim, 2048);
  EXPECT_EQ(qwen->layers, 24);
  EXPECT_EQ(qwen->experts, 128);
  EXPECT_EQ(qwen->experts_per_token, 8);
  EXPECT_EQ(qwen->hidden, 768);
  EXPECT_EQ(qwen->head_dim(), 64);
  EXPECT_FALSE(qwen->normalize_experts || qwen->mixtral_names);
  // The number of experts has two names; a window is one of all layers, whatever the file says.
  const auto other = TransformerConfig::FromJson(
      R"({"model_type": "qwen3_moe", "num_local_experts": 6, "num_experts_per_tok": 3,
          "moe_intermediate_size": 24, "intermediate_size": 99, "norm_topk_prob": true,
          "mlp_only_layers": [], "decoder_sparse_step": 1, "sliding_window": 5,
          "use_sliding_window": true, "max_window_layers": 9})");
  DT_ASSERT_OK(other);
  EXPECT_EQ(other->experts, 6);
  EXPECT_EQ(other->hidden, 24);
  EXPECT_TRUE(other->normalize_experts);
  EXPECT_EQ(other->window, 5);
  EXPECT_EQ(other->first_window_layer, 0);
  const auto named = TransformerConfig::FromJson(R"({"model_type": "mixtral", "num_experts": 3})");
  DT_ASSERT_OK(named);
  EXPECT_EQ(named->experts, 3);
}

TEST(TransformerConfig, ReadsSharedExpertsAndLayersWithoutExperts) {
  const auto qwen2 = TransformerConfig::FromJson(R"({"model_type": "qwen2_moe"})");
  DT_ASSERT_OK(qwen2);
  EXPECT_EQ(qwen2->heads, 16);
  EXPECT_EQ(qwen2->kv_heads, 16);
  EXPECT_EQ(qwen2->experts, 60);
  EXPECT_EQ(qwen2->experts_per_token, 4);
  EXPECT_EQ(qwen2->hidden, 1408);
  EXPECT_EQ(qwen2->shared_hidden, 5632);
  EXPECT_TRUE(qwen2->qkv_bias && !qwen2->o_bias && !qwen2->normalize_experts);
  EXPECT_THAT(qwen2->dense_layers, IsEmpty());
  const auto some = TransformerConfig::FromJson(
      R"({"model_type": "qwen3_moe", "num_hidden_layers": 6, "decoder_sparse_step": 2,
          "mlp_only_layers": [4, 3], "intermediate_size": 99})");
  DT_ASSERT_OK(some);
  EXPECT_THAT(some->dense_layers, ElementsAre(0, 2, 3, 4));
  EXPECT_EQ(some->dense_hidden, 99);
  EXPECT_EQ(some->shared_hidden, 0);
  EXPECT_TRUE(some->has_experts(1) && !some->has_experts(3));
  const auto none = TransformerConfig::FromJson(
      R"({"model_type": "qwen2_moe", "num_hidden_layers": 2, "mlp_only_layers": [0, 1]})");
  DT_ASSERT_OK(none);
  EXPECT_EQ(none->experts, 0);
  EXPECT_EQ(none->hidden, 5632);
  EXPECT_THAT(none->dense_layers, IsEmpty());
}

TEST(TransformerConfig, ReadsSigmoidRouters) {
  const auto glm = TransformerConfig::FromJson(R"({"model_type": "glm4_moe", "head_dim": 128})");
  DT_ASSERT_OK(glm);
  EXPECT_EQ(glm->router_score, RouterScore::kSigmoid);
  EXPECT_EQ(glm->experts, 128);
  EXPECT_EQ(glm->experts_per_token, 8);
  EXPECT_EQ(glm->hidden, 1408);
  EXPECT_EQ(glm->shared_hidden, 1408);
  EXPECT_EQ(glm->dense_hidden, 10944);
  EXPECT_THAT(glm->dense_layers, ElementsAre(0));
  EXPECT_EQ(glm->heads, 96);
  EXPECT_EQ(glm->rotary_dim, 64);
  EXPECT_EQ(glm->routed_scaling_factor, 1);
  EXPECT_TRUE(glm->normalize_experts && !glm->qk_norm && !glm->qkv_bias);
  const auto other = TransformerConfig::FromJson(
      R"({"model_type": "glm4_moe", "head_dim": 16, "n_routed_experts": 12, "n_group": 4,
          "topk_group": 3, "n_shared_experts": 2, "moe_intermediate_size": 10,
          "first_k_dense_replace": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": false,
          "use_qk_norm": true, "attention_bias": true, "partial_rotary_factor": 0.25,
          "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1}})");
  DT_ASSERT_OK(other);
  EXPECT_EQ(other->expert_groups, 4);
  EXPECT_EQ(other->picked_groups, 3);
  EXPECT_EQ(other->shared_hidden, 20);
  EXPECT_THAT(other->dense_layers, ElementsAre(0, 1));
  EXPECT_EQ(other->routed_scaling_factor, 2.5);
  EXPECT_EQ(other->rotary_dim, 0);
  EXPECT_TRUE(other->qk_norm && other->qkv_bias && !other->o_bias && !other->normalize_experts);
  const auto dense = TransformerConfig::FromJson(
      R"({"model_type": "glm4_moe", "head_dim": 8, "num_hidden_layers": 2,
          "first_k_dense_replace": 3})");
  DT_ASSERT_OK(dense);
  EXPECT_EQ(dense->experts, 0);
  EXPECT_EQ(dense->hidden, 10944);
}

TEST(TransformerConfig, ReadsLatentAttention) {
  const auto usual = TransformerConfig::FromJson(R"({"model_type": "deepseek_v3"})");
  DT_ASSERT_OK(usual);
  EXPECT_EQ(usual->heads, 128);
  EXPECT_EQ(usual->kv_lora_rank, 512);
  EXPECT_EQ(usual->q_lora_rank, 1536);
  EXPECT_EQ(usual->head_dim(), 192);
  EXPECT_EQ(usual->rotary_dim, 64);
  EXPECT_EQ(usual->v_head_dim, 128);
  EXPECT_EQ(usual->experts, 256);
  EXPECT_EQ(usual->expert_groups, 8);
  EXPECT_EQ(usual->picked_groups, 4);
  EXPECT_EQ(usual->routed_scaling_factor, 2.5);
  EXPECT_EQ(usual->hidden, 2048);
  EXPECT_EQ(usual->dense_hidden, 18432);
  EXPECT_EQ(usual->attention_scale, 0);
  EXPECT_THAT(usual->dense_layers, ElementsAre(0, 1, 2));
  EXPECT_TRUE(usual->rope_interleaved && !usual->qkv_bias);
  const auto scaled = TransformerConfig::FromJson(
      R"({"model_type": "deepseek_v3", "q_lora_rank": null, "rope_interleave": false,
          "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                           "beta_fast": 32, "beta_slow": 1,
                           "original_max_position_embeddings": 4096}})");
  DT_ASSERT_OK(scaled);
  EXPECT_EQ(scaled->q_lora_rank, 0);
  EXPECT_FALSE(scaled->rope_interleaved);
  const double factor = 0.1 * std::log(40) + 1;
  EXPECT_DOUBLE_EQ(scaled->attention_scale, factor * factor / std::sqrt(192));
  EXPECT_EQ(scaled->rope_scaling.amplitude, 1);
  const auto both = TransformerConfig::FromJson(
      R"({"model_type": "deepseek_v3", "num_attention_heads": 4,
          "rope_parameters": {"rope_theta": 50},
          "rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0,
                           "original_max_position_embeddings": 4096}})");
  DT_ASSERT_OK(both);
  EXPECT_DOUBLE_EQ(both->attention_scale, factor * factor / std::sqrt(192));
  EXPECT_EQ(both->rope_theta, 50);
  EXPECT_EQ(both->kv_heads, 4);  // as many as heads, if the file does not say
}

TEST(TransformerConfig, ReadsGemma) {
  const auto first = TransformerConfig::FromJson(R"({"model_type": "gemma", "hidden_size": 16,
                                                     "hidden_act": "gelu"})");
  DT_ASSERT_OK(first);
  EXPECT_EQ(first->vocab, 256000);
  EXPECT_EQ(first->heads, 16);
  EXPECT_EQ(first->kv_heads, 16);
  EXPECT_EQ(first->head_dim(), 256);
  EXPECT_EQ(first->gelu_gate, GeluForm::kTanh) << "whatever old files say";
  EXPECT_EQ(first->norm_offset, 1);
  EXPECT_EQ(first->embedding_scale, 4);
  EXPECT_EQ(first->window, 0);
  EXPECT_TRUE(first->tie_embeddings && !first->post_norms && !first->qk_norm);
  const auto third = TransformerConfig::FromJson(R"({"model_type": "gemma3_text"})");
  DT_ASSERT_OK(third);
  EXPECT_EQ(third->dim, 2304);
  EXPECT_EQ(third->embedding_scale, 48);
  EXPECT_EQ(third->attention_scale, 1.0 / 16);
  EXPECT_EQ(third->window, 4096);
  EXPECT_THAT(third->full_layers, ElementsAre(5, 11, 17, 23));
  EXPECT_TRUE(third->has_window(4) && !third->has_window(5));
  EXPECT_EQ(third->rope_theta, 1e6);
  EXPECT_EQ(third->window_rope_theta, 1e4);
  EXPECT_TRUE(third->tie_embeddings && third->post_norms && third->qk_norm && !third->qkv_bias);
}

// Older files have the members of rotary embeddings outside of objects.
TEST(TransformerConfig, ReadsRopeOfGemma3WhereFilesHaveIt) {
  const auto older = TransformerConfig::FromJson(
      R"({"model_type": "gemma3_text", "rope_theta": 500, "rope_local_base_freq": 50,
          "rope_scaling": {"rope_type": "linear", "factor": 8}, "sliding_window_pattern": 9})");
  const auto newer = TransformerConfig::FromJson(
      R"({"model_type": "gemma3_text", "rope_parameters": {
          "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 500},
          "sliding_attention": {"rope_type": "default", "rope_theta": 50}},
          "num_hidden_layers": 3,
          "layer_types": ["sliding_attention", "full_attention", "full_attention"]})");
  for (const auto& config : {older, newer}) {
    DT_ASSERT_OK(config);
    EXPECT_EQ(config->rope_theta, 500);
    EXPECT_EQ(config->rope_scaling.factor, 8);
    EXPECT_EQ(config->window_rope_theta, 50);
  }
  EXPECT_THAT(older->full_layers, ElementsAre(8, 17));
  EXPECT_THAT(newer->full_layers, ElementsAre(1, 2));
}

TEST(TransformerConfig, RefusesGemmasThatAreOtherwise) {
  const auto refuses = [](absl::string_view member, absl::string_view name) {
    EXPECT_THAT(TransformerConfig::FromJson(absl::StrCat(
                    R"({"model_type": "gemma3_text", "num_hidden_layers": 2, )", member, "}")),
                Refuses(HasSubstr(std::string(name))))
        << member;
  };
  refuses(R"("hidden_activation": "silu")", "hidden_activation is \"silu\"");
  refuses(R"("attn_logit_softcapping": 50.0)", "attn_logit_softcapping is 50; there is no");
  refuses(R"("final_logit_softcapping": 30.0)", "final_logit_softcapping is 30; there is no");
  refuses(R"("use_bidirectional_attention": true)", "attention is causal");
  refuses(R"("query_pre_attn_scalar": 0)", "query_pre_attn_scalar is 0");
  refuses(R"("sliding_window": null)", "sliding_window is missing; give the window");
  refuses(R"("sliding_window_pattern": 0)", "sliding_window_pattern is 0");
  refuses(R"("rope_local_base_freq": 0)", "rope_local_base_freq is 0");
  refuses(R"("layer_types": ["full_attention"])", "give one for each of 2 layers");
  refuses(R"("layer_types": [])", "give one for each of 2 layers");
  refuses(R"("layer_types": ["full_attention", "chunked_attention"])",
          "they are sliding_attention or full_attention");
  refuses(R"("layer_types": "full_attention")", "give a list");
  refuses(R"("rope_parameters": {"rope_type": "default", "rope_theta": 9})",
          "rope_parameters.rope_theta is 9; give it in full_attention and in sliding_attention");
  refuses(R"("rope_parameters": {"full_attention": 3})", "give an object");
  refuses(R"("rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}})",
          "rope_parameters.sliding_attention.rope_type is \"linear\"");
  EXPECT_THAT(TransformerConfig::FromJson(R"({"model_type": "gemma2"})"),
              Refuses(HasSubstr("gemma, gemma3_text")));
}

TEST(TransformerConfig, RefusesWindowsAndNormsThatItCannotHave) {
  const auto refuses = [](const auto& set, const char* why) {
    TransformerConfig config;
    set(config);
    EXPECT_THAT(config.Validate(), Refuses(HasSubstr(why)));
  };
  refuses([](auto& c) { c.full_layers = {0}; }, "full_layers is set, and no layer has a window");
  refuses([](auto& c) { c.window_rope_theta = 9; }, "window_rope_theta is set");
  refuses([](auto& c) { c.window = 4, c.full_layers = {4}; }, "full_layers has 4, and layers are");
  refuses([](auto& c) { c.window = 4, c.full_layers = {-1}; }, "full_layers has -1");
  refuses([](auto& c) { c.window = 4, c.window_rope_theta = -1; }, "window_rope_theta is -1");
  refuses([](auto& c) { c.norm_offset = NAN; }, "norm_offset is nan");
  refuses([](auto& c) { c.embedding_scale = INFINITY; }, "embedding_scale is inf");
  refuses([](auto& c) { c.experts = 4, c.gelu_gate = GeluForm::kErf; }, "have no gelu_gate");
  refuses(
      [](auto& c) {
        c.kv_lora_rank = 4, c.v_head_dim = 4, c.rotary_dim = 2, c.kv_heads = 8, c.norm_offset = 1;
      },
      "norm_offset is set, which latent attention has not");
}

TEST(TransformerConfig, RefusesMixturesThatAreOtherwise) {
  const auto refuses = [](absl::string_view type, absl::string_view member,
                          absl::string_view name) {
    EXPECT_THAT(
        TransformerConfig::FromJson(absl::StrCat(R"({"model_type": ")", type, "\", ", member, "}")),
        Refuses(HasSubstr(std::string(name))))
        << member;
  };
  refuses("mixtral", R"("router_jitter_noise": 0.1)", "router_jitter_noise");
  refuses("mixtral", R"("num_experts_per_tok": 9)", "experts_per_token is 9");
  refuses("qwen3_moe", R"("mlp_only_layers": [24])", "mlp_only_layers is a list; give a list of");
  refuses("qwen3_moe", R"("mlp_only_layers": [0, -1])", "whole numbers from 0 to 23");
  refuses("qwen3_moe", R"("mlp_only_layers": [0, 1.5])", "mlp_only_layers");
  refuses("qwen3_moe", R"("mlp_only_layers": ["0"])", "mlp_only_layers");
  refuses("qwen3_moe", R"("mlp_only_layers": 0)", "mlp_only_layers is 0; give a list");
  refuses("qwen3_moe", R"("mlp_only_layers": [[]])", "mlp_only_layers");
  refuses("qwen3_moe", R"("mlp_only_layers": [{"a": 1}])", "mlp_only_layers");
  refuses("qwen3_moe", R"("mlp_only_layers": {})", "mlp_only_layers");
  refuses("qwen3_moe", R"("decoder_sparse_step": 0)", "decoder_sparse_step");
  refuses("qwen2_moe", R"("use_sliding_window": true)", "use_sliding_window");
  refuses("qwen2_moe", R"("shared_expert_intermediate_size": 0)", "shared_expert_intermediate");
  refuses("qwen3_moe", R"("num_experts": 5000)", "num_experts");
  refuses("glm4_moe", R"("head_dim": 64, "n_group": 3)", "expert_groups");
  refuses("glm4_moe", R"("head_dim": 64, "n_group": 64, "topk_group": 3)",
          "the 3 picked_groups have 6 experts");
  refuses("glm4_moe", R"("head_dim": 64, "n_group": 128, "topk_group": 9)",
          "expert_groups is 128 for 128 experts");
  refuses("glm4_moe", R"("head_dim": 64, "n_group": 2, "topk_group": 3)",
          "there are 2 expert_groups");
  refuses("glm4_moe", R"("head_dim": 64, "routed_scaling_factor": 0)",
          "routed_scaling_factor is 0");
  refuses("glm4_moe", R"("partial_rotary_factor": 1.5)", "partial_rotary_factor");
  refuses("glm4_moe", R"("partial_rotary_factor": 0.01)", "two features or more");
  refuses("deepseek_v3", R"("num_key_value_heads": 64)", "kv_heads is 64 and heads 128");
  refuses("deepseek_v3", R"("qk_rope_head_dim": 63)", "must be even");
  for (const char* const type : {"llama", "mixtral", "deepseek_v3", "glm4_moe"}) {
    refuses(type, R"("num_attention_heads": 0)", "num_attention_heads");
  }
  refuses("glm4_moe", R"("hidden_size": -9223372036854775808, "num_attention_heads": -1)",
          "hidden");
  refuses("glm4_moe", R"("n_shared_experts": 5000)", "n_shared_experts");
  refuses("deepseek_v3", R"("qk_rope_head_dim": 9223372036854775807)", "qk_rope_head_dim");
  const std::string yarn = R"("type": "yarn", "original_max_position_embeddings": 8, )";
  refuses("deepseek_v3", R"("rope_scaling": {)" + yarn + R"("factor": 4, "mscale_all_dim": 1e308})",
          "mscale_all_dim");
  refuses("glm4_moe", R"("rope_scaling": {)" + yarn + R"("factor": 1e308, "mscale": 1e308,
              "mscale_all_dim": 1e308})",
          "rope_scaling.factor");
  refuses("qwen3_moe", R"("rope_parameters": {"partial_rotary_factor": 0.5})",
          "models of this type have none");
}

TEST(TransformerConfig, ReadsHowRopeIsScaled) {
  const auto linear =
      TransformerConfig::FromJson(Llama(R"("rope_scaling": {"type": "linear", "factor": 2})"));
  DT_ASSERT_OK(linear);
  EXPECT_EQ(linear->rope_scaling.factor, 2);
  EXPECT_EQ(linear->rope_scaling.trained, 0);
  const auto llama3 = TransformerConfig::FromJson(Llama(
      R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
         "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192})"));
  DT_ASSERT_OK(llama3);
  EXPECT_EQ(llama3->rope_theta, 5e5);
  EXPECT_EQ(llama3->rope_scaling.factor, 8);
  EXPECT_EQ(llama3->rope_scaling.low, 1);
  EXPECT_EQ(llama3->rope_scaling.high, 4);
  EXPECT_EQ(llama3->rope_scaling.trained, 8192);
}

TEST(TransformerConfig, ReadsYarn) {
  const auto yarn = [](absl::string_view more) {
    const auto config = TransformerConfig::FromJson(
        Llama(absl::StrCat(R"("rope_scaling": {"type": "yarn", "factor": 4.0, )", more,
                           R"("original_max_position_embeddings": 32768})")));
    EXPECT_THAT(config, IsOk());
    return config.ok() ? config->rope_scaling : RopeScaling();
  };
  RopeScaling want = {.factor = 4, .low = 1, .high = 32, .trained = 32768};
  want.transition = RopeTransition::kByWholePairs;
  want.amplitude = 0.1 * std::log(4) + 1;
  EXPECT_EQ(yarn(""), want);
  want.amplitude = (0.2 * std::log(4) + 1) / (0.05 * std::log(4) + 1);
  EXPECT_EQ(yarn(R"("mscale": 2, "mscale_all_dim": 0.5, )"), want);
  want.amplitude = 1.5;
  want.transition = RopeTransition::kByPairs;
  want.low = 2;
  want.high = 16;
  EXPECT_EQ(
      yarn(R"("attention_factor": 1.5, "truncate": false, "beta_slow": 2, "beta_fast": 16, )"),
      want);
}

TEST(TransformerConfig, RefusesWhatItWouldGetWrong) {
  const auto refuses = [](absl::string_view member, absl::string_view name, absl::string_view why) {
    EXPECT_THAT(TransformerConfig::FromJson(Llama(member)),
                Refuses(AllOf(HasSubstr(absl::StrCat("TransformerConfig: ", name, " is ")),
                              HasSubstr(why))))
        << member;
  };
  refuses(R"("hidden_act": "gelu")", "hidden_act", "is \"gelu\"");
  refuses(R"("attention_bias": 1)", "attention_bias", "true or false");
  refuses(R"("head_dim": 0)", "head_dim", "from 1 to");
  refuses(R"("attention_dropout": 0.1)", "attention_dropout", "set it to 0");
  refuses(R"("rope_scaling": {"rope_type": "yarn", "factor": 4})",
          "rope_scaling.original_max_position_embeddings", "missing");
  refuses(R"("rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1,
              "original_max_position_embeddings": 8})",
          "rope_scaling.beta_fast", "more than beta_slow");
  refuses(R"("rope_scaling": {"rope_type": "yarn", "factor": 4, "attention_factor": 0,
              "original_max_position_embeddings": 8})",
          "rope_scaling.attention_factor", "above 0");
  refuses(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
          "rope_scaling.low_freq_factor", "missing; give a number above 0");
  refuses(R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
              "high_freq_factor": 4, "original_max_position_embeddings": 9})",
          "rope_scaling.high_freq_factor", "more than low_freq_factor");
  refuses(R"("rope_scaling": {"type": "linear"})", "rope_scaling.factor", "above 0");
  refuses(R"("rope_scaling": {"factor": 2})", "rope_scaling.factor", "how it scales");
  refuses(R"("rope_parameters": {"rope_type": "dynamic", "factor": 2})",
          "rope_parameters.rope_type", "linear, llama3 or yarn");
  refuses(R"("rope_theta": 0)", "rope_theta", "above 0");
  refuses(R"("rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 4,
              "original_max_position_embeddings": 8})",
          "rope_theta", "above 1");
  refuses(R"("rope_parameters": {"rope_theta": 0})", "rope_parameters.rope_theta", "is 0; give");
  refuses(R"("rope_scaling": "linear")", "rope_scaling", "give an object");
  refuses(R"("rope_scaling": ["linear", 2])", "rope_scaling", "is a list; give an object");
  refuses(R"("rope_parameters": 3)", "rope_parameters", "give an object");
  refuses(R"("quantization_config": {"bits": 4})", "quantization_config.quant_method", "missing");
  refuses(R"("quantization_config": [])", "quantization_config", "is a list");
}

TEST(TransformerConfig, MayBeOfFilesInFp8) {
  const auto fp8 = [](absl::string_view more) {
    return TransformerConfig::FromJson(
        Llama(absl::StrCat(R"("quantization_config": {"quant_method": "fp8")", more, "}")));
  };
  for (const absl::string_view more :
       {"", R"(, "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 64],
              "modules_to_not_convert": ["lm_head"], "scale_fmt": "ue8m0")"}) {
    EXPECT_THAT(fp8(more), IsOk()) << more;
  }
  const auto refuses = [&](absl::string_view more, absl::string_view member, const char* why) {
    EXPECT_THAT(fp8(absl::StrCat(", ", more)),
                Refuses(AllOf(HasSubstr(absl::StrCat("quantization_config.", member, " is ")),
                              HasSubstr(why))));
  };
  refuses(R"("fmt": "e5m2")", "fmt", "in this form");
  refuses(R"("activation_scheme": "static")", "activation_scheme", "scales of activations");
  refuses(R"("weight_block_size": null)", "weight_block_size", "one scale");
  refuses(R"("weight_block_size": 128)", "weight_block_size", "give a list");
  refuses(R"("weight_block_size": [])", "weight_block_size", "two sizes");
  refuses(R"("weight_block_size": [128])", "weight_block_size", "two sizes");
  refuses(R"("weight_block_size": [128, 0])", "weight_block_size", "two sizes");
  refuses(R"("weight_block_size": [128, -1])", "weight_block_size", "whole numbers");
}

TEST(TransformerConfig, NamesTheMemberThatIsNoNumber) {
  const auto refuses = [](absl::string_view value, absl::string_view why) {
    const std::string text = absl::StrCat(R"({"hidden_size": )", value, "}");
    EXPECT_THAT(TransformerConfig::FromJson(text),
                Refuses(AllOf(HasSubstr("hidden_size is "), HasSubstr(why))))
        << value;
  };
  for (const absl::string_view value :
       {"0", "-1", "1.5", "1e3", "true", "\"8\"", "[8]", "{}", "134217729", "9223372036854775808",
        "99999999999999999999999999"}) {
    refuses(value, "give a whole number from 1 to 134217728");
  }
  refuses(absl::StrCat("\"", std::string(9999, 'a'), "\""), "a...\"");
  refuses("\"\\u0001\"", "\"\\001\"");
  EXPECT_THAT(TransformerConfig::FromJson(R"({"num_hidden_layers": 1000000})"),
              Refuses(HasSubstr("num_hidden_layers")));
  EXPECT_THAT(TransformerConfig::FromJson(R"({"rms_norm_eps": -1})"),
              Refuses(HasSubstr("rms_norm_eps is -1")));
  EXPECT_THAT(TransformerConfig::FromJson(R"({"tie_word_embeddings": 1})"),
              Refuses(HasSubstr("give true or false")));
  EXPECT_THAT(TransformerConfig::FromJson(R"({"num_attention_heads": 7})"),
              Refuses(HasSubstr("heads must divide dim")));
}

// Of another model whatever else it says is no fault of the file.
TEST(TransformerConfig, SaysFirstThatTheModelIsAnother) {
  EXPECT_THAT(
      TransformerConfig::FromJson(R"({"model_type": "mamba", "hidden_size": "wide"})"),
      Refuses(HasSubstr("model_type is \"mamba\"; this reads the configuration of one of ")));
}

TEST(TransformerConfig, RefusesWhatIsNoJsonObject) {
  for (const std::string text : {"", "{", "[]", "3", "\"llama\"", "null", "{\"a\":}", "{} {}",
                                 "{\"a\": 1e999}", "\xff", "{\"a\": \"\xff\"}"}) {
    EXPECT_THAT(TransformerConfig::FromJson(text), Refuses(HasSubstr("no JSON object"))) << text;
  }
  EXPECT_THAT(TransformerConfig::FromJson(R"({"a": 1, "a": 1})"), Refuses(HasSubstr("'a' twice")));
  const std::string deep(100000, '['), deeper = absl::StrCat("{\"a\": ", deep);
  EXPECT_THAT(TransformerConfig::FromJson(deeper), Refuses(HasSubstr("too deeply")));
}

TEST(ModelFromJson, MakesTheModelOfTheType) {
  const auto model = ModelFromJson(Llama(""));
  DT_ASSERT_OK(model);
  int parameters = 0;
  (*model)->VisitParameters([&](const std::string&, Parameter&) { ++parameters; });
  EXPECT_EQ(parameters, 3 + 2 * 9);
  DT_EXPECT_OK(ModelFromJson(R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2})"));
  DT_EXPECT_OK(
      ModelFromJson(R"({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2})"));
}

TEST(Gpt2Config, HasHuggingFacesDefaults) {
  const auto config = Gpt2Config::FromJson("{}");
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->vocab, 50257);
  EXPECT_EQ(config->positions, 1024);
  EXPECT_EQ(config->mlp_hidden(), 3072);
  EXPECT_EQ(config->gelu, GeluForm::kTanh);
  EXPECT_EQ(config->attention_dropout, 0.1);
  EXPECT_TRUE(config->tie_embeddings);
}

TEST(Gpt2Config, RefusesWhatItWouldGetWrong) {
  const auto refuses = [](absl::string_view member, absl::string_view why) {
    EXPECT_THAT(Gpt2Config::FromJson(absl::StrCat("{", member, "}")), Refuses(HasSubstr(why)))
        << member;
  };
  refuses(R"("activation_function": "relu")", "activation_function is \"relu\"");
  refuses(R"("add_cross_attention": true)", "add_cross_attention is true");
  refuses(R"("hidden_size": 8)", "call it n_embd");
  refuses(R"("attn_pdrop": 1)", "below 1");
  refuses(R"("n_head": 5)", "heads must divide dim");
  refuses(R"("model_type": "llama")", "model_type is \"llama\"");
  refuses(R"("quantization_config": {})", "quantization_config.quant_method is missing");
}

TEST(BertConfig, HasHuggingFacesDefaults) {
  const auto config = BertConfig::FromJson("{}");
  DT_ASSERT_OK(config);
  EXPECT_EQ(config->vocab, 30522);
  EXPECT_EQ(config->token_types, 2);
  EXPECT_EQ(config->hidden, 3072);
  EXPECT_EQ(config->norm_eps, 1e-12);
  EXPECT_EQ(config->gelu, GeluForm::kErf);
}

TEST(BertConfig, RefusesWhatItWouldGetWrong) {
  const auto refuses = [](absl::string_view member, absl::string_view why) {
    EXPECT_THAT(BertConfig::FromJson(absl::StrCat("{", member, "}")), Refuses(HasSubstr(why)))
        << member;
  };
  refuses(R"("hidden_act": "relu")", "hidden_act is \"relu\"");
  refuses(R"("position_embedding_type": "relative_key")", "absolute ones");
  refuses(R"("is_decoder": true)", "is_decoder is true");
  refuses(R"("num_attention_heads": 5)", "heads must divide dim");
}

TEST(ModelFromJson, ListsTheTypesThatThereAre) {
  EXPECT_THAT(
      ModelFromJson(R"({"model_type": "mamba"})"),
      Refuses(AllOf(HasSubstr("model_type is \"mamba\""), HasSubstr("bert, gpt2, deepseek_v3"))));
  EXPECT_THAT(ModelFromJson("{}"), Refuses(HasSubstr("model_type is missing")));
  EXPECT_THAT(ModelFromJson(R"({"model_type": "llama", "vocab_size": 0})"),
              Refuses(HasSubstr("vocab_size is 0")));
}

TEST(ModelFromJson, SaysHowModelsOfImagesAreMade) {
  for (const char* const type : {"vit", "resnet"}) {
    EXPECT_THAT(ModelFromJson(absl::StrCat(R"({"model_type": ")", type, "\"}")),
                Refuses(AllOf(HasSubstr(absl::StrCat("model_type is \"", type, "\"")),
                              HasSubstr("called with images"))));
  }
}

}  // namespace
}  // namespace dtensor
