// GPT-2: learned positions, LayerNorm before attention and MLP, one projection for queries, keys
// and values together, a GELU MLP, the head tied to the embedding. Names and shapes are those of
// Hugging Face's GPT2LMHeadModel, so its state dicts can be loaded and saved by name. Conv1D
// weights are [in, out].
//
//   transformer.wte.weight                      [vocab, dim], the head's as well
//   transformer.wpe.weight                      [positions, dim]
//   transformer.h.N.ln_{1,2}.{weight,bias}      [dim]
//   transformer.h.N.attn.c_attn.{weight,bias}   [dim, 3 dim]: [q; k; v]; [3 dim]
//   transformer.h.N.attn.c_proj.{weight,bias}   [dim, dim]; [dim]
//   transformer.h.N.mlp.c_fc.{weight,bias}      [dim, hidden]; [hidden]
//   transformer.h.N.mlp.c_proj.{weight,bias}    [hidden, dim]; [dim]
//   transformer.ln_f.{weight,bias}              [dim]
//   lm_head.weight                              [vocab, dim]
#ifndef DTENSOR_NN_GPT2_H_
#define DTENSOR_NN_GPT2_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct Gpt2Config {
  int64_t vocab = 50257, positions = 1024, dim = 768, layers = 12, heads = 12;
  int64_t hidden = 0;  // of the MLP; 0 means 4 dim
  double norm_eps = 1e-5;
  double init_stddev = 0.02;  // projections back to dim: stddev / sqrt(2 layers)
  GeluForm gelu = GeluForm::kTanh;
  bool tie_embeddings = true;
  // Dropout during training: of the embedded tokens, of each residual branch, of attention's
  // weights.
  double embedding_dropout = 0.1, residual_dropout = 0.1, attention_dropout = 0.1;
  // Attention scores are divided by sqrt(head_dim), and, with scale_by_layer, by i + 1 in layer i
  // (from 0).
  bool scale_attention = true, scale_by_layer = false;

  // Reads Hugging Face's config.json of a gpt2. Errors: kInvalidArgument for text that is not a
  // JSON object, for members that are not numbers in range, and, by name, for what the model does
  // not implement: an activation other than GELU, cross-attention, quantized weights. Members that
  // do not affect the language model's results are ignored.
  static absl::StatusOr<Gpt2Config> FromJson(absl::string_view text);

  int64_t head_dim() const { return dim / heads; }
  int64_t mlp_hidden() const { return hidden > 0 ? hidden : 4 * dim; }
  // Errors: kInvalidArgument: sizes < 1, heads that do not divide dim.
  absl::Status Validate() const;
};

// Token ids [batch, sequence] (i32 or i64), at positions 0 to sequence - 1 -> logits [batch,
// sequence, vocab]. With a cache (kv_cache.h): logits of the last token only. A sequence longer
// than `positions` is refused.
class Gpt2 : public Module {
 public:
  explicit Gpt2(const Gpt2Config& config);  // Requires: config.Validate().ok()
  ~Gpt2() override;
  const Gpt2Config& config() const { return config_; }
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override;

 private:
  class Body;  // "transformer": embeddings, blocks, norm
  const Gpt2Config config_;
  std::unique_ptr<Body> body_;
  LinearLayer lm_head_;
  KvCacheSlot slot_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_GPT2_H_
