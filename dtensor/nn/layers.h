// The layers that models are made of. Shapes are global; activations [batch, sequence, features].
#ifndef DTENSOR_NN_LAYERS_H_
#define DTENSOR_NN_LAYERS_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The stddev for projections back to the residual stream (Radford et al. 2019). It keeps their sum
// over all layers bounded.
inline double ResidualStddev(double stddev, int64_t layers) {
  return stddev / std::sqrt(2.0 * static_cast<double>(layers));
}

// y = x weight^T + bias; x [..., in], weight [out, in], bias [out], y [..., out]. Groups of
// Units::in (out) features are never cut. If there are more shards than such groups, they may be
// cut, but only between groups of in_part (out_part) features; 0: never cut.
//
// If `in` is sharded, the product is a Partial sum. The output edge reduces it first, and the bias
// is added after that: once, so that the edge's reduce-scatter stays a reduce-scatter. Otherwise
// the bias is added to the product at once.
class LinearLayer : public Module {
 public:
  struct Units {
    int64_t in = 1, out = 1;
    int64_t in_part = 0, out_part = 0;
    int64_t out_pieces = 1;  // Parameter::pieces
  };
  // kReturned: the module has two results, "y" without the bias and "bias", for a caller that adds
  // it later. Requires: a bias.
  enum class Bias { kNone, kAdded, kReturned };
  static constexpr Bias BiasIf(bool has) { return has ? Bias::kAdded : Bias::kNone; }
  // The bias is initialized to 0.
  LinearLayer(int64_t in, int64_t out, double stddev, Units units, Bias bias = Bias::kNone);
  LinearLayer(int64_t in, int64_t out, double stddev) : LinearLayer(in, out, stddev, Units()) {}
  // Shares the weight of another layer, such as a head tied to an embedding [out, in]. Requires:
  // two dimensions; a bias [out], or null for none.
  explicit LinearLayer(ParameterPtr weight, ParameterPtr bias = nullptr, Bias use = Bias::kAdded);
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }  // null: none
  LinearLayer* linear() override { return this; }
  // Which dimension of the weight is `out`; the other is `in`.
  int out_dim() const { return own_parameters()[0].roles[0] == DimRole::kOutput ? 0 : 1; }

  // Matrices a [r, in] and b [out, r] beside the weight (lora.h): scale (x a^T) b^T is added to the
  // product. In training, x is dropped out on its way to a.
  struct Adapter {
    ParameterPtr a, b;
    double scale = 1, dropout = 0;
  };
  const std::optional<Adapter>& adapter() const { return adapter_; }
  // Adds the matrices to the layer's parameters as "lora_A" and "lora_B". Requires: there is none.
  void SetAdapter(Adapter adapter);
  // Removes the matrices from the layer and its parameters; does nothing if there is none.
  void RemoveAdapter();

 protected:
  TensorOr Forward(const DistributedTensor& x) override;
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;
  TensorOr Finish(const DistributedTensor& y, const Spec& computed) override;
  // `roles`: those of the weight's dimensions.
  LinearLayer(ParameterPtr weight, ParameterPtr bias, Bias use, std::vector<DimRole> roles);
  // y plus the adapter's product, in x's type, which y has too; y if there is no adapter.
  TensorOr Adapted(const TensorOr& y, const DistributedTensor& x) const;

 private:
  const ParameterPtr weight_, bias_;
  std::optional<Adapter> adapter_;
};

// The same with a weight [in, out], y = x weight + bias. Hugging Face calls this Conv1D;
// checkpoints of GPT-2 have such weights.
class Conv1dLayer : public LinearLayer {
 public:
  Conv1dLayer(int64_t in, int64_t out, double stddev, Units units);
  Conv1dLayer(int64_t in, int64_t out, double stddev) : Conv1dLayer(in, out, stddev, Units()) {}

 protected:
  TensorOr Forward(const DistributedTensor& x) override;
};

// Picks rows of weight [rows, dim] by ids [batch, sequence]; the result is [batch, sequence, dim].
class EmbeddingLayer : public Module {
 public:
  EmbeddingLayer(int64_t rows, int64_t dim, double stddev);
  explicit EmbeddingLayer(ParameterPtr weight);  // of another layer. Requires: two dimensions.
  const ParameterPtr& weight() const { return weight_; }
  int64_t num_ids() const override { return weight_->shape[0]; }

 protected:
  TensorOr Forward(const DistributedTensor& ids) override;

 private:
  const ParameterPtr weight_;
};

// Learned positions: x [batch, sequence, dim] + the first `sequence` rows of weight [positions,
// dim]. With a cache (kv_cache.h) the rows start after the tokens that the cache has. A sequence
// longer than `positions` is refused.
class PositionEmbeddingLayer : public Module {
 public:
  PositionEmbeddingLayer(int64_t positions, int64_t dim, double stddev);
  const ParameterPtr& weight() const { return weight_; }
  KvCacheSlot* kv_cache_slot() override { return &slot_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  // The row of each token of x.
  TensorOr Rows(const DistributedTensor& x) const;

  const ParameterPtr weight_;
  KvCacheSlot slot_;
};

// x / sqrt(mean(x^2) + eps) * (offset + weight) over the last dimension. The factor is initially 1.
// With an offset, norms of 16-bit tensors are computed in f32: 1 + a small weight needs its bits.
class RmsNormLayer : public Module {
 public:
  explicit RmsNormLayer(int64_t dim, double eps = 1e-5, double offset = 0);
  const ParameterPtr& weight() const { return weight_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const ParameterPtr weight_;
  const double eps_, offset_;
};

// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension. Initially weight is 1
// and bias 0.
class LayerNormLayer : public Module {
 public:
  explicit LayerNormLayer(int64_t dim, double eps = 1e-5);
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const ParameterPtr weight_, bias_;
  double eps_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_LAYERS_H_
