// ExpertMlp: gathers the rows of the tokens that picked one of this rank's experts, by expert, so
// that each expert makes its products once, for all of its tokens. Where one axis splits tokens and
// experts, the tokens come from the ranks of that axis, and the results go back (token_exchange.h).
// Backward makes the first two products again instead of keeping their results, which have a row
// for each pick; and so it has the tokens sent again, together with the gradients.
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/ops/batched_product.h"
#include "dtensor/ops/expert_routing.h"
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
  const bool have_tokens = x.ndim() > 0 && experts.ndim() > 0;
  if (have_tokens && tokens(x) == tokens(experts) && experts.shape == weights.shape) {
    return absl::OkStatus();
  }
  return refuse(
      "x is [tokens..., features], experts and weights are [tokens..., choices], with the same "
      "tokens; Reshape or Expand them");
}

// [..., n] as [rows, n], row-major.
absl::StatusOr<Tensor> AsRows(Device& device, const Tensor& x) {
  DT_ASSIGN_OR_RETURN(const Tensor packed, Contiguous(device, x));
  const int64_t shape[] = {NumElements(absl::MakeConstSpan(x.shape()).first(x.ndim() - 1)),
                           x.shape().back()};
  return packed.Reshape(shape);
}

// A column of the elements of x.
absl::StatusOr<Tensor> AsColumn(const Tensor& x) {
  const int64_t shape[] = {x.numel(), 1};
  return x.Reshape(shape);
}

// One rank's experts and the tokens that picked them. Below, "a row for each pick" is a tensor
// [picks, n].
class Picks {
 public:
  Picks(Device& device, ExpertRouting routing) : device_(device), routing_(std::move(routing)) {}

  absl::StatusOr<Tensor> Rows(const Tensor& like, int64_t n) const {
    return Tensor::Empty(device_, like.dtype(), {routing_.picks(), n});
  }
  // The row of x [tokens, n] of each pick's token.
  absl::StatusOr<Tensor> OfTokens(const Tensor& x) const { return Gather(x, routing_.tokens); }
  // The element of x [tokens * choices, 1] of each pick.
  absl::StatusOr<Tensor> OfChoices(const Tensor& x) const { return Gather(x, routing_.choices); }
  // The reverse: adds up the rows of each token's picks, by ascending expert.
  absl::Status AddToTokens(const Tensor& rows, const Tensor& x) const {
    return Scatter(rows, routing_.tokens, x);
  }
  absl::Status AddToChoices(const Tensor& rows, const Tensor& x) const {
    return Scatter(rows, routing_.choices, x);
  }

  // out = rows matrices[expert]^T, or rows matrices[expert]; added to `out` if `adds`. rows, out:
  // a row for each pick.
  absl::Status Multiply(const Tensor& rows, const Tensor& matrices, bool transposed,
                        const Tensor& out, bool adds = false) const {
    return ForEachExpert([&](int64_t e, int64_t begin, int64_t count) {
      const Tensor matrix = At(matrices, e);
      return MatrixProduct(device_, rows.Narrow(0, begin, count),
                           transposed ? matrix.Transpose(0, 1) : matrix,
                           out.Narrow(0, begin, count), adds);
    });
  }
  // matrices[expert] = a^T b, a sum over the expert's picks. a, b: a row for each pick.
  absl::Status Contract(const Tensor& a, const Tensor& b, const Tensor& matrices) const {
    return ForEachExpert([&](int64_t e, int64_t begin, int64_t count) {
      return MatrixProduct(device_, a.Narrow(0, begin, count).Transpose(0, 1),
                           b.Narrow(0, begin, count), At(matrices, e));
    });
  }

 private:
  static Tensor At(const Tensor& matrices, int64_t e) {
    return matrices.View({matrices.size(1), matrices.size(2)},
                         {matrices.strides()[1], matrices.strides()[2]}, e * matrices.strides()[0]);
  }
  template <typename Fn>
  absl::Status ForEachExpert(Fn&& fn) const {
    for (int64_t e = 0; e < routing_.experts(); ++e) {
      const int64_t begin = routing_.begin[e];
      DT_RETURN_IF_ERROR(fn(e, begin, routing_.begin[e + 1] - begin));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Gather(const Tensor& x, const Tensor& at) const {
    DT_ASSIGN_OR_RETURN(Tensor out, Rows(x, x.size(1)));
    DT_RETURN_IF_ERROR(
        kernels::Embedding(device_, at, x, IndexSet::Interval(0, x.size(0)), x.size(0), out));
    return out;
  }
  absl::Status Scatter(const Tensor& rows, const Tensor& at, const Tensor& x) const {
    return kernels::EmbeddingGrad(device_, at, rows, IndexSet::Interval(0, x.size(0)), x);
  }

  Device& device_;
  ExpertRouting routing_;
};

// The tokens that this rank's experts work on, one row each: this rank's own, or those that it was
// sent.
struct Work {
  TokenExchange exchange;
  Tensor x, weights, dy;  // dy: in backward
};

// The rows of x that are sent, and room for those that are received.
absl::StatusOr<SentRows> Outgoing(const RankCall& call, const TokenExchange& exchange,
                                  const Tensor& x) {
  Device& device = call.device();
  SentRows rows;
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
absl::StatusOr<Work> ToExperts(const Call& call, const Tensor* dy) {
  DT_ASSIGN_OR_RETURN(TokenExchange exchange,
                      TokenExchange::Create(call, kX, kGate, call.operands[kExperts]));
  Work work{std::move(exchange), {}, {}, {}};
  std::vector<std::pair<Tensor, Tensor*>> all = {{call.operands[kX], &work.x},
                                                 {call.operands[kWeights], &work.weights}};
  if (dy != nullptr) all.emplace_back(*dy, &work.dy);
  std::vector<SentRows> rows;
  for (const auto& [mine, there] : all) {
    DT_ASSIGN_OR_RETURN(const Tensor packed, AsRows(call.device(), mine));
    *there = packed;
    if (work.exchange.is_alone()) continue;
    DT_ASSIGN_OR_RETURN(rows.emplace_back(), Outgoing(call, work.exchange, packed));
    *there = rows.back().to;
  }
  if (rows.empty()) return work;
  DT_RETURN_IF_ERROR(work.exchange.ToExperts(rows, dy == nullptr ? kThere : kThereInBackward));
  return work;
}

// A result of the experts, a row for each token that they worked on, and where its tokens are to
// get it: the sum of what the ranks made of them.
struct Made {
  Tensor rows, into;
};
absl::Status ToTokens(const RankCall& call, const TokenExchange& exchange,
                      absl::Span<const Made> made, int number) {
  if (exchange.is_alone()) return absl::OkStatus();  // `rows` and `into` are one tensor
  Device& device = call.device();
  std::vector<SentRows> moved;
  for (const Made& one : made) {
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
absl::StatusOr<Made> MakeRows(const RankCall& call, const TokenExchange& exchange,
                              const Tensor& result) {
  DT_ASSIGN_OR_RETURN(const Tensor into, AsRows(call.device(), result));
  if (exchange.is_alone()) return Made{into, into};
  DT_ASSIGN_OR_RETURN(Tensor rows, Tensor::Empty(call.device(), into.dtype(),
                                                 {exchange.num_received(), into.size(1)}));
  return Made{std::move(rows), into};
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
absl::StatusOr<Hidden> HiddenOf(const Call& call, const Work& work, const Picks& picks) {
  Device& device = call.device();
  Hidden hidden;
  DT_ASSIGN_OR_RETURN(hidden.x, picks.OfTokens(work.x));
  DT_ASSIGN_OR_RETURN(const Tensor weights, AsColumn(work.weights));
  DT_ASSIGN_OR_RETURN(hidden.weights, picks.OfChoices(weights));
  for (const auto& [i, out] : {std::pair(kGate, &hidden.gate), std::pair(kUp, &hidden.up)}) {
    DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device, call.operands[i]));
    DT_ASSIGN_OR_RETURN(*out, picks.Rows(work.x, matrices.size(1)));
    DT_RETURN_IF_ERROR(picks.Multiply(hidden.x, matrices, /*transposed=*/true, *out));
  }
  return hidden;
}

absl::Status Forward(const OpCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const Work work, ToExperts(call, nullptr));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, work.exchange));
  DT_ASSIGN_OR_RETURN(const Hidden hidden, HiddenOf(call, work, picks));
  DT_ASSIGN_OR_RETURN(const Tensor h, hidden.Activated(device));
  DT_RETURN_IF_ERROR(hidden.Weigh(device, h));
  DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device, call.operands[kDown]));
  DT_ASSIGN_OR_RETURN(const Tensor y, picks.Rows(h, down.size(1)));
  DT_RETURN_IF_ERROR(picks.Multiply(h, down, /*transposed=*/true, y));
  DT_ASSIGN_OR_RETURN(const Made made, MakeRows(call, work.exchange, call.results[0]));
  DT_RETURN_IF_ERROR(picks.AddToTokens(y, made.rows));
  return ToTokens(call, work.exchange, {made}, kBack);
}

// With a = silu(gate) * up, h = w a and y = h down^T for each pick:
//   dh = dy down, ddown = dy^T h, dw = dh . a, da = w dh; then the gradients of the two products.
class Gradients {
 public:
  Gradients(const GradCall& call, const Work& work, const Picks& picks, Hidden hidden)
      : call_(call),
        device_(call.device()),
        work_(work),
        picks_(picks),
        hidden_(std::move(hidden)) {}

  absl::Status Write() {
    DT_ASSIGN_OR_RETURN(const Tensor dh, WriteOutputs());
    if (call_.wants(kX) || call_.wants(kGate) || call_.wants(kUp)) {
      DT_RETURN_IF_ERROR(hidden_.Weigh(device_, dh));
      DT_RETURN_IF_ERROR(WriteInputs(dh));
    }
    return made_.empty() ? absl::OkStatus()
                         : ToTokens(call_, work_.exchange, made_, kBackInBackward);
  }

 private:
  // The gradients of down and of the weights; returns dh.
  absl::StatusOr<Tensor> WriteOutputs() {
    DT_ASSIGN_OR_RETURN(const Tensor activated, hidden_.Activated(device_));
    DT_ASSIGN_OR_RETURN(const Tensor dy, picks_.OfTokens(work_.dy));
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
                        MakeRows(call_, work_.exchange, call_.gradients[kWeights]));
    DT_ASSIGN_OR_RETURN(const Tensor out, AsColumn(made_.back().rows));
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
    DT_ASSIGN_OR_RETURN(made_.emplace_back(), MakeRows(call_, work_.exchange, call_.gradients[kX]));
    return picks_.AddToTokens(hidden_.x, made_.back().rows);
  }

  const GradCall& call_;
  Device& device_;
  const Work& work_;
  const Picks& picks_;
  Hidden hidden_;
  std::vector<Made> made_;  // that belong to tokens
};

absl::Status Backward(const GradCall& call) {
  DT_ASSIGN_OR_RETURN(const Work work, ToExperts(call, &call.result_gradients[0]));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, work.exchange));
  DT_ASSIGN_OR_RETURN(Hidden hidden, HiddenOf(call, work, picks));
  return Gradients(call, work, picks, std::move(hidden)).Write();
}

// What is known on the host may not find memory there.
absl::Status ExpertMlpForward(const OpCall& call) {
  return NoThrow([&] { return Forward(call); });
}
absl::Status ExpertMlpBackward(const GradCall& call) {
  return NoThrow([&] { return Backward(call); });
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
