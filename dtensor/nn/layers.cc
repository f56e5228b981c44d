#include "dtensor/nn/layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

int64_t PartOf(int64_t unit, int64_t part) { return part == 0 ? unit : part; }

ParameterPtr NewWeight(int64_t out, int64_t in, double stddev, const LinearLayer::Units& units) {
  ParameterPtr weight =
      Parameter::New({out, in}, ParameterInit::Normal(stddev), {units.out, units.in},
                     {PartOf(units.out, units.out_part), PartOf(units.in, units.in_part)});
  weight->pieces = {units.out_pieces, 1};
  return weight;
}

// The same, transposed.
ParameterPtr NewConv1dWeight(int64_t in, int64_t out, double stddev,
                             const LinearLayer::Units& units) {
  ParameterPtr weight = NewWeight(out, in, stddev, units);
  for (Dims* dims : {&weight->shape, &weight->units, &weight->unit_parts, &weight->pieces}) {
    std::swap((*dims)[0], (*dims)[1]);
  }
  return weight;
}

ParameterPtr NewBias(int64_t out, const LinearLayer::Units& units, LinearLayer::Bias bias) {
  if (bias == LinearLayer::Bias::kNone) return nullptr;
  ParameterPtr parameter = Parameter::New({out}, ParameterInit::Constant(0), {units.out},
                                          {PartOf(units.out, units.out_part)});
  parameter->pieces = {units.out_pieces};
  return parameter;
}

}  // namespace

LinearLayer::LinearLayer(int64_t in, int64_t out, double stddev, Units units, Bias bias)
    : LinearLayer(NewWeight(out, in, stddev, units), NewBias(out, units, bias), bias) {}

LinearLayer::LinearLayer(ParameterPtr weight, ParameterPtr bias, Bias use)
    : LinearLayer(std::move(weight), std::move(bias), use, {DimRole::kOutput, DimRole::kInput}) {}

LinearLayer::LinearLayer(ParameterPtr weight, ParameterPtr bias, Bias use,
                         std::vector<DimRole> roles)
    : weight_(std::move(weight)), bias_(std::move(bias)) {
  DT_REQUIRE(weight_ != nullptr && weight_->shape.size() == 2,
             "LinearLayer: the weight is null, or has not two dimensions; give one [out, in]");
  const int64_t out = weight_->shape[roles[0] == DimRole::kOutput ? 0 : 1];
  AddParameter("weight", weight_, std::move(roles));
  DT_REQUIRE(bias_ != nullptr || use != Bias::kReturned,
             "LinearLayer: Bias::kReturned without a bias; give one");
  if (bias_ == nullptr) return;
  DT_REQUIRE(bias_->shape == Dims{out},
             "LinearLayer: the bias is not [out], of the weight's output features");
  AddParameter("bias", bias_, {DimRole::kOutput});
  if (use == Bias::kReturned) SetResults({"y", "bias"});
}

void LinearLayer::SetAdapter(Adapter adapter) {
  DT_REQUIRE(!adapter_, "LinearLayer::SetAdapter: there is an adapter; remove it first");
  AddParameter("lora_A", adapter.a, {DimRole::kOther, DimRole::kInput});
  AddParameter("lora_B", adapter.b, {DimRole::kOutput, DimRole::kOther});
  adapter_ = std::move(adapter);
}

void LinearLayer::RemoveAdapter() {
  RemoveParameter("lora_A");
  RemoveParameter("lora_B");
  adapter_.reset();
}

TensorOr LinearLayer::Adapted(const TensorOr& y, const DistributedTensor& x) const {
  if (!adapter_) return y;
  const auto& [a, b, scale, dropout] = *adapter_;
  const auto matrix = [&](const ParameterPtr& m) { return Cast(m->ValueOn(x.mesh()), x.dtype()); };
  const bool drops = training() && dropout != 0;
  const TensorOr kept = drops ? Dropout(x, dropout, x.context().NextSeed()) : TensorOr(x);
  return Add(y, Linear(Scale(Linear(kept, matrix(a)), scale), matrix(b)));
}

TensorOr LinearLayer::Forward(const DistributedTensor& x) {
  const TensorOr weight = weight_->ValueOn(x.mesh());
  if (bias_ == nullptr) return Adapted(Linear(x, weight), x);
  DT_ASSIGN_OR_RETURN(const bool partial, LinearIsPartial(x, weight));
  if (!partial) return Adapted(Linear(x, weight, bias_->ValueOn(x.mesh())), x);
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, Adapted(Linear(x, weight), x));
  // An adapter that lies otherwise than the weight has had the sum reduced: Finish adds no bias.
  return y.layout().is_partial() ? TensorOr(y) : Add(y, bias_->ValueOn(x.mesh()));
}

TensorsOr LinearLayer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  if (result_names().size() == 1) return Module::ForwardAll(operands);
  DT_ASSIGN_OR_RETURN(
      DistributedTensor y,
      Adapted(Linear(operands[0], weight_->ValueOn(operands[0].mesh())), operands[0]));
  DT_ASSIGN_OR_RETURN(DistributedTensor bias, bias_->ValueOn(operands[0].mesh()));
  return std::vector<DistributedTensor>{std::move(y), std::move(bias)};
}

TensorOr LinearLayer::Finish(const DistributedTensor& y, const Spec& computed) {
  const bool adds = bias_ != nullptr && computed.layout.is_partial();
  return adds ? Add(y, bias_->ValueOn(y.mesh())) : y;
}

Conv1dLayer::Conv1dLayer(int64_t in, int64_t out, double stddev, Units units)
    : LinearLayer(NewConv1dWeight(in, out, stddev, units), NewBias(out, units, Bias::kAdded),
                  Bias::kAdded, {DimRole::kInput, DimRole::kOutput}) {}

TensorOr Conv1dLayer::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor y,
                      Adapted(MatMul(x, weight()->ValueOn(x.mesh())), x));
  return y.layout().is_partial() ? y : Add(y, bias()->ValueOn(x.mesh()));
}

EmbeddingLayer::EmbeddingLayer(int64_t rows, int64_t dim, double stddev)
    : EmbeddingLayer(Parameter::New({rows, dim}, ParameterInit::Normal(stddev))) {}

EmbeddingLayer::EmbeddingLayer(ParameterPtr weight) : weight_(std::move(weight)) {
  DT_REQUIRE(weight_ != nullptr && weight_->shape.size() == 2,
             "EmbeddingLayer: the weight is null, or has not two dimensions; give one [rows, dim]");
  AddParameter("weight", weight_, {DimRole::kRow, DimRole::kOutput});
}

TensorOr EmbeddingLayer::Forward(const DistributedTensor& ids) {
  return Embedding(ids, weight_->ValueOn(ids.mesh()));
}

PositionEmbeddingLayer::PositionEmbeddingLayer(int64_t positions, int64_t dim, double stddev)
    : weight_(Parameter::New({positions, dim}, ParameterInit::Normal(stddev))) {
  AddParameter("weight", weight_);
  slot_.positions = positions;
}

TensorOr PositionEmbeddingLayer::Forward(const DistributedTensor& x) {
  const int64_t end = x.ndim() != 3            ? 0
                      : slot_.cache != nullptr ? slot_.cache->positions().end
                                               : x.shape()[1];
  if (x.ndim() != 3 || end > weight_->shape[0]) {
    return InvalidArgument({"learned positions ", DimsToString(weight_->shape), " for ",
                            x.ToString(), ": tokens are [batch, sequence, features], of at most ",
                            absl::StrCat(weight_->shape[0]), " a sequence, and here end at ",
                            absl::StrCat(end), "; give shorter ones"});
  }
  return Add(x, Rows(x));
}

TensorOr PositionEmbeddingLayer::Rows(const DistributedTensor& x) const {
  const int64_t batch = x.shape()[0], s = x.shape()[1], last = weight_->shape[0] - 1;
  const KvCache::Positions at =
      slot_.cache != nullptr ? slot_.cache->positions() : KvCache::Positions();
  if (at.rows.empty() && at.first + s <= last + 1) {
    return Slice(weight_->ValueOn(x.mesh()), 0, at.first, at.first + s);
  }
  // Each row begins at its own position. Padding after the last position gets the last one.
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < batch * s; ++i) {
    const int64_t first = at.rows.empty() ? at.first : at.rows[i / s];
    ids.push_back(std::min(first + i % s, last));
  }
  return Embedding(
      Distribute<int64_t>(x.context(), Layout::Replicated(x.mesh(), 2), {batch, s}, ids),
      weight_->ValueOn(x.mesh()));
}

LayerNormLayer::LayerNormLayer(int64_t dim, double eps)
    : weight_(Parameter::New({dim}, ParameterInit::Constant(1))),
      bias_(Parameter::New({dim}, ParameterInit::Constant(0))),
      eps_(eps) {
  AddParameter("weight", weight_);
  AddParameter("bias", bias_);
}

TensorOr LayerNormLayer::Forward(const DistributedTensor& x) {
  return LayerNorm(x, weight_->ValueOn(x.mesh()), bias_->ValueOn(x.mesh()), eps_);
}

RmsNormLayer::RmsNormLayer(int64_t dim, double eps, double offset)
    : weight_(Parameter::New({dim}, ParameterInit::Constant(1 - offset))),
      eps_(eps),
      offset_(offset) {
  AddParameter("weight", weight_);
}

TensorOr RmsNormLayer::Forward(const DistributedTensor& x) {
  const TensorOr weight = weight_->ValueOn(x.mesh());
  if (offset_ == 0) return RmsNorm(x, weight, eps_);
  const DType wide = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return Cast(RmsNorm(Cast(x, wide), AddScalar(Cast(weight, wide), offset_), eps_), x.dtype());
}

}  // namespace dtensor
