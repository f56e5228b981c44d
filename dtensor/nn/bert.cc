#include "dtensor/nn/bert.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/config_reader.h"
#include "dtensor/nn/dropout_layer.h"
#include "dtensor/nn/encoder_layers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using internal::ConfigReader;
using internal::EncoderAttention;
using internal::EncoderMlpHalf;

constexpr auto kBias = LinearLayer::Bias::kAdded;

internal::EncoderSizes SizesOf(const BertConfig& config) {
  return {.dim = config.dim,
          .heads = config.heads,
          .hidden = config.hidden,
          .stddev = config.init_stddev,
          .attention_dropout = config.attention_dropout};
}

// The sum of word, token type and position embeddings, after LayerNorm.
class Embeddings : public Module {
 public:
  explicit Embeddings(const BertConfig& config)
      : word_(config.vocab, config.dim, config.init_stddev),
        position_(config.positions, config.dim, config.init_stddev),
        token_type_(config.token_types, config.dim, config.init_stddev),
        norm_(config.dim, config.norm_eps),
        dropout_(config.hidden_dropout) {
    SetOperands({"input_ids", "token_type_ids"});
    AddChild("word_embeddings", &word_);
    AddChild("position_embeddings", &position_);
    AddChild("token_type_embeddings", &token_type_);
    AddChild("LayerNorm", &norm_);
    AddChild("dropout", &dropout_);
  }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override {
    const TensorOr words = Add(word_(operands[0]), token_type_(operands[1]));
    DT_ASSIGN_OR_RETURN(DistributedTensor y, dropout_(norm_(position_(words))));
    return std::vector<DistributedTensor>{std::move(y)};
  }

 private:
  EmbeddingLayer word_;
  PositionEmbeddingLayer position_;
  EmbeddingLayer token_type_;
  LayerNormLayer norm_;
  DropoutLayer dropout_;
};

// LayerNorm(dense(x) + residual): the end of each half of a layer.
class Output : public Module {
 public:
  Output(const BertConfig& config, int64_t in, int64_t unit)
      : dense_(in, config.dim, config.init_stddev, {.in = unit}, kBias),
        norm_(config.dim, config.norm_eps),
        dropout_(config.hidden_dropout) {
    SetOperands({"x", "residual"});
    AddChild("dense", &dense_);
    AddChild("LayerNorm", &norm_);
    AddChild("dropout", &dropout_);
  }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override {
    DT_ASSIGN_OR_RETURN(DistributedTensor y,
                        norm_(Add(dropout_(dense_(operands[0])), operands[1])));
    return std::vector<DistributedTensor>{std::move(y)};
  }

 private:
  LinearLayer dense_;
  LayerNormLayer norm_;
  DropoutLayer dropout_;
};

class AttentionHalf : public Module {
 public:
  explicit AttentionHalf(const BertConfig& config)
      : self_(SizesOf(config)), output_(config, config.dim, config.head_dim()) {
    AddChild("self", &self_);
    AddChild("output", &output_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return output_(self_(x), x); }

 private:
  EncoderAttention self_;
  Output output_;
};

class Layer : public Module {
 public:
  explicit Layer(const BertConfig& config)
      : attention_(config),
        intermediate_(SizesOf(config), config.gelu),
        output_(config, config.hidden, 1) {
    AddChild("attention", &attention_);
    AddChild("intermediate", &intermediate_);
    AddChild("output", &output_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const TensorOr mixed = attention_(x);
    return output_(intermediate_(mixed), mixed);
  }

 private:
  AttentionHalf attention_;
  EncoderMlpHalf intermediate_;
  Output output_;
};

// tanh(dense(x)) of the first token: [b, s, dim] -> [b, dim].
class Pooler : public Module {
 public:
  explicit Pooler(const BertConfig& config)
      : dense_(config.dim, config.dim, config.init_stddev, {}, kBias) {
    AddChild("dense", &dense_);
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    const Dims shape = {x.shape()[0], x.shape()[2]};
    return Tanh(dense_(Reshape(Slice(x, 1, 0, 1), shape)));
  }

 private:
  LinearLayer dense_;
};

}  // namespace

absl::StatusOr<BertConfig> BertConfig::FromJson(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("BertConfig", text));
  json.OnlyModel("bert");
  BertConfig config;
  config.vocab = json.Size("vocab_size", config.vocab);
  config.positions = json.Size("max_position_embeddings", config.positions);
  config.token_types = json.Size("type_vocab_size", config.token_types);
  config.dim = json.Size("hidden_size", config.dim);
  config.layers = json.Size("num_hidden_layers", config.layers, ConfigReader::kMaxLayers);
  config.heads = json.Size("num_attention_heads", config.heads);
  config.hidden = json.Size("intermediate_size", config.hidden);
  config.norm_eps = json.Number("layer_norm_eps", config.norm_eps);
  config.init_stddev = json.Number("initializer_range", config.init_stddev);
  config.gelu = json.Gelu("hidden_act", "gelu");
  config.hidden_dropout = json.Probability("hidden_dropout_prob", config.hidden_dropout);
  config.attention_dropout =
      json.Probability("attention_probs_dropout_prob", config.attention_dropout);
  json.OnlyText("position_embedding_type", "absolute", "positions are a table of absolute ones");
  json.OnlyFlag("is_decoder", false, "the model is an encoder");
  json.OnlyFlag("add_cross_attention", false, "the model is an encoder");
  DT_RETURN_IF_ERROR(json.status());
  DT_RETURN_IF_ERROR(config.Validate());
  return config;
}

absl::Status BertConfig::Validate() const {
  DT_RETURN_IF_ERROR(internal::CheckSizes("BertModel", {{"vocab", vocab},
                                                        {"positions", positions},
                                                        {"token_types", token_types},
                                                        {"dim", dim},
                                                        {"layers", layers},
                                                        {"heads", heads},
                                                        {"hidden", hidden}}));
  return internal::CheckDivides("BertModel", {"heads", heads}, {"dim", dim});
}

struct BertModel::Parts {
  explicit Parts(const BertConfig& config) : embeddings(config), encoder(config), pooler(config) {}
  Embeddings embeddings;
  internal::Encoder<Layer, BertConfig> encoder;
  Pooler pooler;
};

BertModel::BertModel(const BertConfig& config)
    : config_(config), parts_(std::make_unique<Parts>(config)) {
  SetOperands({"input_ids", "token_type_ids"});
  SetResults({"last_hidden_state", "pooler_output"});
  AddChild("embeddings", &parts_->embeddings);
  AddChild("encoder", &parts_->encoder);
  AddChild("pooler", &parts_->pooler);
}

BertModel::~BertModel() = default;

TensorsOr BertModel::ForwardAll(absl::Span<const DistributedTensor> operands) {
  DT_ASSIGN_OR_RETURN(DistributedTensor last,
                      parts_->encoder(parts_->embeddings(operands[0], operands[1])));
  DT_ASSIGN_OR_RETURN(DistributedTensor pooled, parts_->pooler(last));
  return std::vector<DistributedTensor>{std::move(last), std::move(pooled)};
}

}  // namespace dtensor
