// ExpertMlp: gathers the rows of the tokens that picked one of this rank's experts, by expert, so
// that each expert makes its products once, for all of its tokens. Where one axis splits tokens and
// experts, the tokens come from the ranks of that axis, and the results go back (token_exchange.h).
// Backward makes the first two products again instead of keeping their results, which have a row
// for each pick; and so it has the tokens sent again, together with the gradients.
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/ops/expert_tokens.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

enum Operand { kGate = kFirstMatrices, kUp, kDown };

absl::Status ExpertMlpCheck(Specs operands, AttrsView) {
  return CheckExpertOperands("ExpertMlp", operands);
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
};

template <typename Call>
absl::StatusOr<Hidden> HiddenOf(const Call& call, const AtExperts& there, const Picks& picks) {
  Device& device = call.device();
  Hidden hidden;
  DT_ASSIGN_OR_RETURN(hidden.x, picks.OfTokens(there.x));
  DT_ASSIGN_OR_RETURN(hidden.weights, WeightsOf(device, there, picks));
  for (const auto& [i, out] : {std::pair(kGate, &hidden.gate), std::pair(kUp, &hidden.up)}) {
    DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device, call.operands[i]));
    DT_ASSIGN_OR_RETURN(*out, picks.Rows(there.x, matrices.size(1)));
    DT_RETURN_IF_ERROR(picks.Multiply(hidden.x, matrices, /*transposed=*/true, *out));
  }
  return hidden;
}

absl::Status Forward(const OpCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const AtExperts there, ToExperts(call));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, there.exchange));
  DT_ASSIGN_OR_RETURN(const Hidden hidden, HiddenOf(call, there, picks));
  DT_ASSIGN_OR_RETURN(const Tensor h, hidden.Activated(device));
  DT_RETURN_IF_ERROR(Weigh(device, hidden.weights, h));
  DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device, call.operands[kDown]));
  DT_ASSIGN_OR_RETURN(const Tensor y, picks.Rows(h, down.size(1)));
  DT_RETURN_IF_ERROR(picks.Multiply(h, down, /*transposed=*/true, y));
  DT_ASSIGN_OR_RETURN(const ExpertResult made, MakeRows(call, there.exchange, call.results[0]));
  DT_RETURN_IF_ERROR(picks.AddToTokens(y, made.rows));
  return ToTokens(call, there.exchange, made);
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
      DT_RETURN_IF_ERROR(Weigh(device_, hidden_.weights, dh));
      DT_RETURN_IF_ERROR(WriteInputs(dh));
    }
    return ToTokens(call_, there_.exchange, made_);
  }

 private:
  // The gradients of down and of the weights; returns dh.
  absl::StatusOr<Tensor> WriteOutputs() {
    DT_ASSIGN_OR_RETURN(const Tensor activated, hidden_.Activated(device_));
    DT_ASSIGN_OR_RETURN(const Tensor dy, picks_.OfTokens(there_.dy));
    DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device_, call_.operands[kDown]));
    DT_ASSIGN_OR_RETURN(const Tensor dh, picks_.Rows(dy, down.size(2)));
    DT_RETURN_IF_ERROR(picks_.Multiply(dy, down, /*transposed=*/false, dh));
    if (call_.wants(kWeights)) {
      DT_ASSIGN_OR_RETURN(const Tensor dots, Dots(device_, picks_, dh, activated));
      DT_ASSIGN_OR_RETURN(made_.emplace_back(), WeightGradients(call_, there_, picks_, dots));
    }
    if (call_.wants(kDown)) {
      DT_RETURN_IF_ERROR(Weigh(device_, hidden_.weights, activated));
      DT_RETURN_IF_ERROR(picks_.Contract(dy, activated, call_.gradients[kDown]));
    }
    return dh;
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
  std::vector<ExpertResult> made_;  // that belong to tokens
};

absl::Status Backward(const GradCall& call) {
  DT_ASSIGN_OR_RETURN(const AtExperts there, ToExperts(call));
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
    .prepare = PrepareTokens,
};

}  // namespace

absl::Span<const OpDef* const> ExpertMlpOps() {
  static constexpr const OpDef* kOps[] = {&kExpertMlpOp};
  return kOps;
}

}  // namespace internal

TensorOr ExpertMlp(const TensorOr& x, const TensorOr& experts, const TensorOr& weights,
                   const TensorOr& gate, const TensorOr& up, const TensorOr& down) {
  return Dispatch(internal::kExpertMlpOp, {&x, &experts, &weights, &gate, &up, &down});
}

}  // namespace dtensor
