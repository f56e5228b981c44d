// BERT's encoder: attention without a mask, LayerNorm after attention and after the MLP, learned
// positions, two types of tokens, a pooler. Names and shapes are those of Hugging Face's BertModel,
// so its state dicts can be loaded and saved by name.
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
// Every token attends to all tokens; in a batch of texts that are padded at the end, while there is
// a KeyLengths (dtensor/tensor/key_lengths.h), to the real ones of its text. Every row of the
// embeddings is trained, also that of the padding token.
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
  // Dropout during training: of the results of a layer's parts, of attention's weights.
  double hidden_dropout = 0.1, attention_dropout = 0.1;

  // Reads Hugging Face's config.json of a bert. Errors: kInvalidArgument for text that is not a
  // JSON object, for members that are not numbers in range, and, by name, for what the model does
  // not implement: an activation other than GELU, a decoder, positions other than a table of
  // absolute ones, quantized weights. Members that do not affect the encoder's results are ignored.
  static absl::StatusOr<BertConfig> FromJson(absl::string_view text);

  int64_t head_dim() const { return dim / heads; }
  // Errors: kInvalidArgument: sizes < 1, heads that do not divide dim.
  absl::Status Validate() const;
};

// "input_ids" and "token_type_ids" [batch, sequence] (i32 or i64) -> "last_hidden_state" [batch,
// sequence, dim] and "pooler_output" [batch, dim], of the first token. A sequence longer than
// `positions` is refused.
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
