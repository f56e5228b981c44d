// ExpertMlp: gathers the rows of the tokens that picked one of this rank's experts, by expert, so
// that each expert makes its products once, for all of its tokens. Where one axis splits tokens and
// experts, the tokens come from the ranks of that axis, and the results go back (token_exchange.h).
// Backward makes the first two products again instead of keeping their results, which have a row
// for each pick; and so it has the tokens sent again, together with the gradients.
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/ops/expert_picks.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/token_exchange.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/kernels/indexed.h"
#include "dtensor/runtime/kernels/reduce.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

enum Operand { kX, kExperts, kWeights, kGate, kUp, kDown };
// The exchanges of a call.
enum ExchangeNumber { kThere, kBack, kThereInBackward, kBackInBackward };

absl::Status ExpertMlpCheck(Specs operands, AttrsView) {
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"ExpertMlp: ", why, " (", SpecsText(operands), ")"});
  };
  for (const int i : {kX, kExperts, kWeights}) {
    if (operands[i]->ndim() > 0) continue;
    return refuse("x, experts and weights have at least one dimension; Reshape them first");
  }
  const Spec &x = *operands[kX], &experts = *operands[kExperts], &weights = *operands[kWeights];
  for (const int i : {kWeights, kGate, kUp, kDown}) {
    if (operands[i]->dtype == x.dtype) continue;
    return refuse("x, weights, gate, up and down have unlike types; Cast them to that of x");
  }
  const auto tokens = [](const Spec& spec) {
    return absl::MakeConstSpan(spec.shape).first(spec.ndim() - 1);
  };
  if (tokens(x) == tokens(experts) && experts.shape == weights.shape) return absl::OkStatus();
  return refuse(
      "x is [tokens..., features], experts and weights are [tokens..., choices], with the same "
      "tokens; Reshape or Expand them");
}

// [..., n] as [rows, n].
absl::StatusOr<Tensor> AsRows(Device& device, const Tensor& x) {
  const int64_t shape[] = {NumElements(absl::MakeConstSpan(x.shape()).first(x.ndim() - 1)),
                           x.shape().back()};
  return ReshapeLocal(device, x, shape);
}

// The tokens that this rank's experts work on, one row each: this rank's own, or those that it was
// sent.
struct AtExperts {
  TokenExchange exchange;
  Tensor x, weights, dy;  // dy: in backward
};

// The rows of x that are sent, and room for those that are received.
absl::StatusOr<SentTensor> Outgoing(const RankCall& call, const TokenExchange& exchange,
                                    const Tensor& x) {
  Device& device = call.device();
  SentTensor rows;
  DT_ASSIGN_OR_RETURN(rows.from,
                      Tensor::Empty(device, x.dtype(), {exchange.num_sent(), x.size(1)}));
  DT_ASSIGN_OR_RETURN(rows.to,
                      Tensor::Empty(device, x.dtype(), {exchange.num_received(), x.size(1)}));
  DT_RETURN_IF_ERROR(kernels::Embedding(device, exchange.sent(), x,
                                        IndexSet::Interval(0, x.size(0)), x.size(0), rows.from));
  return rows;
}

// Brings the tokens to the experts. `dy`: null in forward.
template <typename Call>
absl::StatusOr<AtExperts> ToExperts(const Call& call, const Tensor* dy) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(TokenExchange exchange, TokenExchange::Create(call, call.operands[kExperts]));
  AtExperts there{std::move(exchange), {}, {}, {}};
  DT_ASSIGN_OR_RETURN(there.x, AsRows(device, call.operands[kX]));
  DT_ASSIGN_OR_RETURN(there.weights, AsRows(device, call.operands[kWeights]));
  if (dy != nullptr) {
    DT_ASSIGN_OR_RETURN(there.dy, AsRows(device, *dy));
  }
  if (there.exchange.is_alone()) return there;
  std::vector<SentTensor> rows;
  for (Tensor* const one : {&there.x, &there.weights, &there.dy}) {
    if (!one->defined()) continue;
    DT_ASSIGN_OR_RETURN(rows.emplace_back(), Outgoing(call, there.exchange, *one));
    *one = rows.back().to;
  }
  DT_RETURN_IF_ERROR(there.exchange.ToExperts(rows, dy == nullptr ? kThere : kThereInBackward));
  return there;
}

// A result of the experts, a row for each token that they worked on, and where its tokens are to
// get it: the sum of what the ranks made of them.
struct Contribution {
  Tensor rows, into;
};
absl::Status ToTokens(const RankCall& call, const TokenExchange& exchange,
                      absl::Span<const Contribution> made, int number) {
  if (exchange.is_alone()) return absl::OkStatus();  // `rows` and `into` are one tensor
  Device& device = call.device();
  std::vector<SentTensor> moved;
  for (const Contribution& one : made) {
    DT_ASSIGN_OR_RETURN(Tensor back, Tensor::Empty(device, one.rows.dtype(),
                                                   {exchange.num_sent(), one.rows.size(1)}));
    moved.push_back({one.rows, std::move(back)});
  }
  DT_RETURN_IF_ERROR(exchange.ToTokens(moved, number));
  for (size_t i = 0; i < made.size(); ++i) {
    DT_RETURN_IF_ERROR(kernels::EmbeddingGrad(device, exchange.sent(), moved[i].to,
                                              IndexSet::Interval(0, made[i].into.size(0)),
                                              made[i].into));
  }
  return absl::OkStatus();
}

// Where the experts write what belongs into `result`, [tokens..., n].
absl::StatusOr<Contribution> MakeRows(const RankCall& call, const TokenExchange& exchange,
                                      const Tensor& result) {
  DT_ASSIGN_OR_RETURN(const Tensor into, AsRows(call.device(), result));
  if (exchange.is_alone()) return Contribution{into, into};
  DT_ASSIGN_OR_RETURN(Tensor rows, Tensor::Empty(call.device(), into.dtype(),
                                                 {exchange.num_received(), into.size(1)}));
  return Contribution{std::move(rows), into};
}

absl::StatusOr<Picks> PicksOf(const RankCall& call, const TokenExchange& exchange) {
  DT_ASSIGN_OR_RETURN(
      ExpertRouting routing,
      RouteToExperts(call.device(), exchange.picked(), call.OperandIndices(kGate, 0),
                     call.decision.operands[kGate]->shape[0]));
  return Picks(call.device(), std::move(routing));
}

// What forward and backward compute first: a row for each pick.
struct Hidden {
  Tensor x, weights;  // of its token; of its choice, one element
  Tensor gate, up;    // x gate^T, x up^T
  // silu(gate) * up.
  absl::StatusOr<Tensor> Activated(Device& device) const {
    DT_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(device, gate.dtype(), gate.shape()));
    DT_RETURN_IF_ERROR(kernels::SiluMul(device, gate, up, out));
    return out;
  }
  // rows *= weights.
  absl::Status Weigh(Device& device, const Tensor& rows) const {
    return kernels::Binary(device, kernels::BinaryOp::kMul, rows, weights.BroadcastTo(rows.shape()),
                           rows);
  }
};

template <typename Call>
absl::StatusOr<Hidden> HiddenOf(const Call& call, const AtExperts& there, const Picks& picks) {
  Device& device = call.device();
  Hidden hidden;
  DT_ASSIGN_OR_RETURN(hidden.x, picks.OfTokens(there.x));
  DT_ASSIGN_OR_RETURN(const Tensor weights,
                      ReshapeLocal(device, there.weights, {there.weights.numel(), 1}));
  DT_ASSIGN_OR_RETURN(hidden.weights, picks.OfChoices(weights));
  for (const auto& [i, out] : {std::pair(kGate, &hidden.gate), std::pair(kUp, &hidden.up)}) {
    DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device, call.operands[i]));
    DT_ASSIGN_OR_RETURN(*out, picks.Rows(there.x, matrices.size(1)));
    DT_RETURN_IF_ERROR(picks.Multiply(hidden.x, matrices, /*transposed=*/true, *out));
  }
  return hidden;
}

absl::Status Forward(const OpCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const AtExperts there, ToExperts(call, nullptr));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, there.exchange));
  DT_ASSIGN_OR_RETURN(const Hidden hidden, HiddenOf(call, there, picks));
  DT_ASSIGN_OR_RETURN(const Tensor h, hidden.Activated(device));
  DT_RETURN_IF_ERROR(hidden.Weigh(device, h));
  DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device, call.operands[kDown]));
  DT_ASSIGN_OR_RETURN(const Tensor y, picks.Rows(h, down.size(1)));
  DT_RETURN_IF_ERROR(picks.Multiply(h, down, /*transposed=*/true, y));
  DT_ASSIGN_OR_RETURN(const Contribution made, MakeRows(call, there.exchange, call.results[0]));
  DT_RETURN_IF_ERROR(picks.AddToTokens(y, made.rows));
  return ToTokens(call, there.exchange, {made}, kBack);
}

// With a = silu(gate) * up, h = w a and y = h down^T for each pick:
//   dh = dy down, ddown = dy^T h, dw = dh . a, da = w dh; then the gradients of the two products.
class Gradients {
 public:
  Gradients(const GradCall& call, const AtExperts& there, const Picks& picks, Hidden hidden)
      : call_(call),
        device_(call.device()),
        there_(there),
        picks_(picks),
        hidden_(std::move(hidden)) {}

  absl::Status Write() {
    DT_ASSIGN_OR_RETURN(const Tensor dh, WriteOutputs());
    if (call_.wants(kX) || call_.wants(kGate) || call_.wants(kUp)) {
      DT_RETURN_IF_ERROR(hidden_.Weigh(device_, dh));
      DT_RETURN_IF_ERROR(WriteInputs(dh));
    }
    return made_.empty() ? absl::OkStatus()
                         : ToTokens(call_, there_.exchange, made_, kBackInBackward);
  }

 private:
  // The gradients of down and of the weights; returns dh.
  absl::StatusOr<Tensor> WriteOutputs() {
    DT_ASSIGN_OR_RETURN(const Tensor activated, hidden_.Activated(device_));
    DT_ASSIGN_OR_RETURN(const Tensor dy, picks_.OfTokens(there_.dy));
    DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device_, call_.operands[kDown]));
    DT_ASSIGN_OR_RETURN(const Tensor dh, picks_.Rows(dy, down.size(2)));
    DT_RETURN_IF_ERROR(picks_.Multiply(dy, down, /*transposed=*/false, dh));
    if (call_.wants(kWeights)) DT_RETURN_IF_ERROR(WriteWeights(dh, activated));
    if (call_.wants(kDown)) {
      DT_RETURN_IF_ERROR(hidden_.Weigh(device_, activated));
      DT_RETURN_IF_ERROR(picks_.Contract(dy, activated, call_.gradients[kDown]));
    }
    return dh;
  }

  absl::Status WriteWeights(const Tensor& dh, const Tensor& activated) {
    DT_ASSIGN_OR_RETURN(const Tensor products, Tensor::Empty(device_, dh.dtype(), dh.shape()));
    DT_RETURN_IF_ERROR(kernels::Binary(device_, kernels::BinaryOp::kMul, dh, activated, products));
    DT_ASSIGN_OR_RETURN(const Tensor sums, picks_.Rows(dh, 1));
    DT_RETURN_IF_ERROR(kernels::Reduce(device_, ReduceOp::kSum, products, {1}, sums));
    DT_ASSIGN_OR_RETURN(made_.emplace_back(),
                        MakeRows(call_, there_.exchange, call_.gradients[kWeights]));
    const Tensor& rows = made_.back().rows;
    DT_ASSIGN_OR_RETURN(const Tensor out, rows.Reshape({rows.numel(), 1}));
    return picks_.AddToChoices(sums, out);
  }

  // The gradients of x, gate and up, from that of their activated products.
  absl::Status WriteInputs(const Tensor& da) {
    const auto& [gate, up] = std::tie(hidden_.gate, hidden_.up);
    DT_RETURN_IF_ERROR(kernels::SiluMulGrad(device_, gate, up, da, gate, up));
    for (const auto& [i, gradient] : {std::pair(kGate, &gate), std::pair(kUp, &up)}) {
      if (!call_.wants(i)) continue;
      DT_RETURN_IF_ERROR(picks_.Contract(*gradient, hidden_.x, call_.gradients[i]));
    }
    if (!call_.wants(kX)) return absl::OkStatus();
    for (const auto& [i, gradient] : {std::pair(kGate, &gate), std::pair(kUp, &up)}) {
      DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device_, call_.operands[i]));
      DT_RETURN_IF_ERROR(
          picks_.Multiply(*gradient, matrices, /*transposed=*/false, hidden_.x, i == kUp));
    }
    DT_ASSIGN_OR_RETURN(made_.emplace_back(),
                        MakeRows(call_, there_.exchange, call_.gradients[kX]));
    return picks_.AddToTokens(hidden_.x, made_.back().rows);
  }

  const GradCall& call_;
  Device& device_;
  const AtExperts& there_;
  const Picks& picks_;
  Hidden hidden_;
  std::vector<Contribution> made_;  // that belong to tokens
};

absl::Status Backward(const GradCall& call) {
  DT_ASSIGN_OR_RETURN(const AtExperts there, ToExperts(call, &call.result_gradients[0]));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, there.exchange));
  DT_ASSIGN_OR_RETURN(Hidden hidden, HiddenOf(call, there, picks));
  return Gradients(call, there, picks, std::move(hidden)).Write();
}

// What is known on the host may not find memory there.
absl::Status ExpertMlpForward(const OpCall& call) {
  return NoThrow([&] { return Forward(call); });
}
absl::Status ExpertMlpBackward(const GradCall& call) {
  return NoThrow([&] { return Backward(call); });
}

absl::StatusOr<std::shared_ptr<const OpState>> ExpertMlpPrepare(const OpStateRequest& request) {
  return MakeTokenGroup(request, kX, kGate);
}

// Experts are a table whose entries are functions: like an Embedding, a rank computes those that it
// has and adds nothing for the others. It is linear in `weights` and in `down`, but not in the
// other operands, and a rule has only one linearity for all.
const OpDef kExpertMlpOp = {
    .name = "ExpertMlp",
    .rule = "... i!, ... c @e, ... c, e<... f i!, e<... f i!, e<... d f -> ... d",
    .operand_types = {TypeSet::Floats(), TypeSet::Integers(), TypeSet::Floats(), TypeSet::Floats(),
                      TypeSet::Floats(), TypeSet::Floats()},
    .check = ExpertMlpCheck,
    .every_device = {ExpertMlpForward, ExpertMlpBackward},
    .saved_operands = 0b111111,
    .prepare = ExpertMlpPrepare,
};

}  // namespace

absl::Span<const OpDef* const> ExpertOps() {
  static constexpr const OpDef* kOps[] = {&kExpertMlpOp};
  return kOps;
}

}  // namespace internal

TensorOr ExpertMlp(const TensorOr& x, const TensorOr& experts, const TensorOr& weights,
                   const TensorOr& gate, const TensorOr& up, const TensorOr& down) {
  return Dispatch(internal::kExpertMlpOp, {&x, &experts, &weights, &gate, &up, &down});
}

}  // namespace dtensor
