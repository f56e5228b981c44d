#include "dtensor/nn/mixture.h"

#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The matrices of all experts, which checkpoints store one by one under this name.
ParameterPtr NewStack(int64_t experts, int64_t rows, int64_t cols, double stddev,
                      const std::string& name) {
  ParameterPtr stack = Parameter::New({experts, rows, cols}, ParameterInit::Normal(stddev));
  for (int64_t e = 0; e < experts; ++e) {
    stack->parts.push_back({.module = "", .slice = absl::StrCat(e, ".", name, ".weight")});
  }
  return stack;
}

// A gate and its up, which are neighbours in dimension `dim`, stay together.
ParameterPtr NewPairs(const Dims& shape, int dim, ParameterInit init) {
  Dims units(shape.size(), 1);
  units[dim] = 2;
  return Parameter::New(shape, std::move(init), units);
}

// Divides each row by its sum. Scores that are not softmax's may all be 0.
TensorOr Normalized(const DistributedTensor& x, double least = 0) {
  Dims column = x.shape();
  column.back() = 1;
  TensorOr sum = Reshape(Sum(x, {-1}), column);
  if (least > 0) sum = AddScalar(sum, least);
  return Div(x, sum);
}

// `choice` [..., experts], -inf outside of the groups that are picked.
TensorOr InPickedGroups(const DistributedTensor& choice, const MixtureConfig& config) {
  Dims grouped = choice.shape();
  grouped.back() = config.groups;
  grouped.push_back(config.experts / config.groups);
  DT_ASSIGN_OR_RETURN(const DistributedTensor in_groups, Reshape(choice, grouped));
  DT_ASSIGN_OR_RETURN(const auto two, TopK(in_groups, 2));
  DT_ASSIGN_OR_RETURN(const DistributedTensor of_group, Sum(two[0], {-1}));
  DT_ASSIGN_OR_RETURN(const auto best, TopK(of_group, config.picked_groups));
  const TensorOr last = Slice(best[0], -1, config.picked_groups - 1, config.picked_groups);
  Dims column = of_group.shape();
  column.push_back(1);
  // A sum that is NaN is picked, so that it is seen.
  const TensorOr is_picked = Reshape(LogicalNot(Less(of_group, last)), column);
  const TensorOr never = FullLike(choice, -std::numeric_limits<double>::infinity(), {});
  return Reshape(Where(is_picked, in_groups, never), choice.shape());
}

// What a router makes of its logits: p [..., experts], and weights and ids [..., k] of the picks.
struct Routed {
  DistributedTensor p, weights, ids;
};

absl::StatusOr<Routed> RouteBySoftmax(const DistributedTensor& logits,
                                      const MixtureConfig& config) {
  Routed routed;
  DT_ASSIGN_OR_RETURN(routed.p, Softmax(logits));
  DT_ASSIGN_OR_RETURN(const auto picked, TopK(routed.p, config.experts_per_token));
  routed.ids = picked[1];
  DT_ASSIGN_OR_RETURN(routed.weights,
                      config.normalize ? Normalized(picked[0]) : TensorOr(picked[0]));
  return routed;
}

absl::StatusOr<Routed> RouteBySigmoid(const DistributedTensor& logits,
                                      const DistributedTensor& expert_bias,
                                      const MixtureConfig& config) {
  constexpr double kLeast = 1e-20;  // as DeepSeek's models
  Routed routed;
  DT_ASSIGN_OR_RETURN(const DistributedTensor s, Sigmoid(logits));
  DT_ASSIGN_OR_RETURN(DistributedTensor choice, Add(s.Detach(), Cast(expert_bias, s.dtype())));
  if (config.groups > 1) {
    DT_ASSIGN_OR_RETURN(choice, InPickedGroups(choice, config));
  }
  DT_ASSIGN_OR_RETURN(const auto picked, TopK(choice, config.experts_per_token));
  routed.ids = picked[1];
  DT_ASSIGN_OR_RETURN(routed.weights, TakeAlongDim(s, routed.ids));
  if (config.normalize) {
    DT_ASSIGN_OR_RETURN(routed.weights, Normalized(routed.weights, kLeast));
  }
  if (config.scale != 1) {
    DT_ASSIGN_OR_RETURN(routed.weights, Scale(routed.weights, config.scale));
  }
  if (config.router_sums) {
    DT_ASSIGN_OR_RETURN(routed.p, Normalized(s, kLeast));
  }
  return routed;
}

// How many tokens picked each expert, and the sums of p [..., experts] over all tokens, as [1, 2,
// experts].
TensorOr RouterSums(const DistributedTensor& p, const DistributedTensor& ids) {
  const int64_t experts = p.shape().back();
  std::vector<int> tokens(p.ndim() - 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TensorOr both = Stack({Bincount(ids, experts, p.dtype()), Sum(p, tokens)}, 0);
  return Reshape(both, {1, 2, experts});
}

std::unique_ptr<Module> NewExperts(const MixtureConfig& config) {
  if (config.clamp) return std::make_unique<ClampedExpertsLayer>(config);
  return std::make_unique<ExpertsLayer>(config);
}

}  // namespace

ExpertsLayer::ExpertsLayer(const MixtureConfig& config)
    : gate_(NewStack(config.experts, config.hidden, config.dim, config.stddev, config.gate_name)),
      up_(NewStack(config.experts, config.hidden, config.dim, config.stddev, config.up_name)),
      down_(NewStack(config.experts, config.dim, config.hidden, config.down_stddev,
                     config.down_name)) {
  SetOperands({"x", "experts", "weights"});
  AddParameter(config.gate_name, gate_, {DimRole::kExpert, DimRole::kHidden, DimRole::kOther});
  AddParameter(config.up_name, up_, {DimRole::kExpert, DimRole::kHidden, DimRole::kOther});
  AddParameter(config.down_name, down_, {DimRole::kExpert, DimRole::kOutput, DimRole::kHidden});
}

TensorsOr ExpertsLayer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DeviceMesh& mesh = operands[0].mesh();
  DT_ASSIGN_OR_RETURN(DistributedTensor y,
                      ExpertMlp(operands[0], operands[1], operands[2], gate_->ValueOn(mesh),
                                up_->ValueOn(mesh), down_->ValueOn(mesh)));
  return std::vector<DistributedTensor>{std::move(y)};
}

ClampedExpertsLayer::ClampedExpertsLayer(const MixtureConfig& config)
    : clamp_(*config.clamp),
      gate_up_(NewPairs({config.experts, config.dim, 2 * config.hidden}, 2,
                        ParameterInit::Normal(config.stddev))),
      gate_up_bias_(NewPairs({config.experts, 2 * config.hidden}, 1, ParameterInit::Constant(0))),
      down_(Parameter::New({config.experts, config.hidden, config.dim},
                           ParameterInit::Normal(config.down_stddev))),
      down_bias_(Parameter::New({config.experts, config.dim}, ParameterInit::Constant(0))) {
  SetOperands({"x", "experts", "weights"});
  AddParameter("gate_up_proj", gate_up_, {DimRole::kExpert, DimRole::kOther, DimRole::kHidden});
  AddParameter("gate_up_proj_bias", gate_up_bias_, {DimRole::kExpert, DimRole::kHidden});
  AddParameter("down_proj", down_, {DimRole::kExpert, DimRole::kHidden, DimRole::kOutput});
  AddParameter("down_proj_bias", down_bias_, {DimRole::kExpert, DimRole::kOutput});
}

TensorsOr ClampedExpertsLayer::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DeviceMesh& mesh = operands[0].mesh();
  DT_ASSIGN_OR_RETURN(DistributedTensor y,
                      ClampedExpertMlp(operands[0], operands[1], operands[2],
                                       gate_up_->ValueOn(mesh), gate_up_bias_->ValueOn(mesh),
                                       down_->ValueOn(mesh), down_bias_->ValueOn(mesh), clamp_));
  return std::vector<DistributedTensor>{std::move(y)};
}

RouterLayer::RouterLayer(const MixtureConfig& config)
    : LinearLayer(config.dim, config.experts, config.stddev, {}, BiasIf(config.clamp.has_value())) {
  if (config.score == RouterScore::kSoftmax) return;
  expert_bias_ = Parameter::New({config.experts}, ParameterInit::Constant(0));
  expert_bias_->keeps_precision = true;  // BalanceByBias takes small steps
  AddBuffer("e_score_correction_bias", expert_bias_, {DimRole::kOutput});
}

TensorOr RouterLayer::Forward(const DistributedTensor& x) {
  if (expert_bias_ == nullptr || SizeOf(x.dtype()) > 2) return LinearLayer::Forward(x);
  DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(x, DType::kF32));
  return Adapted(Linear(wide, Cast(weight()->ValueOn(x.mesh()), DType::kF32)), wide);
}

MixtureOfExperts::MixtureOfExperts(const MixtureConfig& config,
                                   std::unique_ptr<Module> shared_expert)
    : config_(config),
      router_(config),
      experts_(NewExperts(config)),
      shared_expert_(std::move(shared_expert)) {
  if (config.router_sums) SetResults({"y", "router_sums"});
  AddChild(config.clamp ? "router" : "gate", &router_);
  AddChild("experts", experts_.get());
  if (shared_expert_ == nullptr) return;
  if (config.score == RouterScore::kSigmoid) {
    AddChild("shared_experts", shared_expert_.get());
    return;
  }
  shared_expert_gate_ = std::make_unique<LinearLayer>(config.dim, 1, config.stddev);
  AddChild("shared_expert", shared_expert_.get());
  AddChild("shared_expert_gate", shared_expert_gate_.get());
}

TensorsOr MixtureOfExperts::ForwardAll(absl::Span<const DistributedTensor> operands) {
  const DistributedTensor& x = operands[0];
  DT_ASSIGN_OR_RETURN(DistributedTensor logits, router_(x));
  if (SizeOf(logits.dtype()) == 2) {  // rounded to 16 bits, probabilities would tie
    DT_ASSIGN_OR_RETURN(logits, Cast(logits, DType::kF32));
  }
  Routed routed;
  if (config_.score == RouterScore::kSoftmax) {
    DT_ASSIGN_OR_RETURN(routed, RouteBySoftmax(logits, config_));
  } else {
    DT_ASSIGN_OR_RETURN(const DistributedTensor bias, router_.expert_bias()->ValueOn(x.mesh()));
    DT_ASSIGN_OR_RETURN(routed, RouteBySigmoid(logits, bias, config_));
  }
  const TensorOr y = (*experts_)(x, routed.ids, Cast(routed.weights, x.dtype()));
  std::vector<DistributedTensor> results(1);
  DT_ASSIGN_OR_RETURN(results[0], AddShared(y, x));
  if (config_.router_sums) {
    DT_ASSIGN_OR_RETURN(results.emplace_back(), RouterSums(routed.p, routed.ids));
  }
  return results;
}

TensorOr MixtureOfExperts::AddShared(TensorOr y, const DistributedTensor& x) {
  if (shared_expert_ == nullptr) return y;
  if (shared_expert_gate_ == nullptr) return Add(y, (*shared_expert_)(x));
  const TensorOr gate = Sigmoid((*shared_expert_gate_)(x));  // first, whatever the compiler
  return Add(y, Mul(gate, (*shared_expert_)(x)));
}

}  // namespace dtensor
