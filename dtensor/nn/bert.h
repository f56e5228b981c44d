// BERT's encoder: attention without a mask, LayerNorm after each part, learned positions, two types
// of tokens, a pooler. Names and shapes are those of Hugging Face's BertModel, so a state dict goes
// in and out by name.
//
//   embeddings.{word,position,token_type}_embeddings.weight          [vocab, dim], ...
//   embeddings.LayerNorm.{weight,bias}                               [dim]
//   encoder.layer.N.attention.self.{query,key,value}.{weight,bias}   [dim, dim]; [dim]
//   encoder.layer.N.attention.output.dense.{weight,bias}             [dim, dim]; [dim]
//   encoder.layer.N.attention.output.LayerNorm.{weight,bias}         [dim]
//   encoder.layer.N.intermediate.dense.{weight,bias}                 [hidden, dim]; [hidden]
//   encoder.layer.N.output.dense.{weight,bias}                       [dim, hidden]; [dim]
//   encoder.layer.N.output.LayerNorm.{weight,bias}                   [dim]
//   pooler.dense.{weight,bias}                                       [dim, dim]; [dim]
//
// All tokens see all tokens: attention has no mask of padding, so the sequences of a batch are of
// one length. Every row of the embeddings learns, that of the padding token too.
#ifndef DTENSOR_NN_BERT_H_
#define DTENSOR_NN_BERT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct BertConfig {
  int64_t vocab = 30522, positions = 512, token_types = 2;
  int64_t dim = 768, layers = 12, heads = 12;
  int64_t hidden = 3072;  // of the MLP
  double norm_eps = 1e-12;
  double init_stddev = 0.02;
  GeluForm gelu = GeluForm::kErf;
  // While it trains: of what parts of a layer give, of attention's weights.
  double hidden_dropout = 0.1, attention_dropout = 0.1;

  // From Hugging Face's config.json of a bert. Errors: kInvalidArgument for text that is no JSON
  // object, members that are no numbers in range, and what the model has no part for, by name: an
  // activation that is no GELU, a decoder, positions that are no table of absolute ones, quantized
  // weights. Members that change no result of the encoder are passed over.
  static absl::StatusOr<BertConfig> FromJson(absl::string_view text);

  int64_t head_dim() const { return dim / heads; }
  // Errors: kInvalidArgument: sizes < 1, heads that do not divide dim.
  absl::Status Validate() const;
};

// "input_ids" and "token_type_ids" [batch, sequence] (i32 or i64) -> "last_hidden_state" [batch,
// sequence, dim] and "pooler_output" [batch, dim], of the first token. A sequence that is longer
// than there are positions is refused.
class BertModel : public Module {
 public:
  explicit BertModel(const BertConfig& config);  // Requires: config.Validate().ok()
  ~BertModel() override;
  const BertConfig& config() const { return config_; }

 protected:
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;

 private:
  struct Parts;
  const BertConfig config_;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_BERT_H_
