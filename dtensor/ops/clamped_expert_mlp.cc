// ClampedExpertMlp: as expert_mlp.cc, with one product for gates and ups, biases, and the
// activation of GPT-OSS. The bias behind the last product is added before weights multiply.
#include <cmath>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/expert_tokens.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

constexpr char kName[] = "ClampedExpertMlp";
enum Operand { kGateUp = kFirstMatrices, kGateUpBias, kDown, kDownBias };

absl::Status Check(Specs operands, AttrsView attrs) {
  const SwiGluClamp& clamp = attrs.as<SwiGluClampAttrs>().clamp;
  if (!std::isfinite(clamp.slope) || !(clamp.limit > 0)) {
    return InvalidArgument({kName, ": a slope of ", absl::StrCat(clamp.slope), " and a limit of ",
                            absl::StrCat(clamp.limit),
                            "; give a finite slope, and a limit above 0"});
  }
  const Dims &both = operands[kGateUp]->shape, &down = operands[kDown]->shape;
  if (both.size() == 3 && down.size() == 3 && both[2] != 2 * down[1]) {
    return InvalidArgument({kName, ": gate_up has ", absl::StrCat(both[2]), " columns and down ",
                            absl::StrCat(down[1]), " rows; give a gate and an up for each row (",
                            SpecsText(operands), ")"});
  }
  return CheckExpertOperands(kName, operands);
}

// The gates (0) or the ups (1) of rows whose columns are both in turn.
Tensor Half(const Tensor& both, int64_t which) {
  return both.View({both.size(0), both.size(1) / 2}, {both.strides()[0], 2 * both.strides()[1]},
                   which);
}

// The bias behind the last product is added once: where several ranks have parts of that product's
// sum, by the first of them.
bool AddsDownBias(const RankCall& call) {
  const Layout& down = call.decision.operands[kDown]->layout;
  const auto coordinate = down.mesh().Coordinate(call.context.rank());
  return absl::c_all_of(AxesOf(down.dim(1)), [&](int axis) { return coordinate[axis] == 0; });
}

// What forward and backward compute first: a row for each pick.
struct Hidden {
  Tensor x, weights;  // of its token; of its choice, one element
  Tensor both;        // x gate_up + gate_up_bias
  absl::StatusOr<Tensor> Activated(Device& device, const SwiGluClamp& clamp) const {
    const Tensor gate = Half(both, 0);
    DT_ASSIGN_OR_RETURN(Tensor out, Tensor::Empty(device, both.dtype(), gate.shape()));
    DT_RETURN_IF_ERROR(kernels::ClampedSwiGlu(device, gate, Half(both, 1), clamp, out));
    return out;
  }
};

template <typename Call>
absl::StatusOr<Hidden> HiddenOf(const Call& call, const AtExperts& there, const Picks& picks) {
  Device& device = call.device();
  Hidden hidden;
  DT_ASSIGN_OR_RETURN(hidden.x, picks.OfTokens(there.x));
  DT_ASSIGN_OR_RETURN(hidden.weights, WeightsOf(device, there, picks));
  DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device, call.operands[kGateUp]));
  DT_ASSIGN_OR_RETURN(const Tensor biases, Contiguous(device, call.operands[kGateUpBias]));
  DT_ASSIGN_OR_RETURN(hidden.both, picks.Rows(there.x, matrices.size(2)));
  DT_RETURN_IF_ERROR(picks.Multiply(hidden.x, matrices, /*transposed=*/false, hidden.both));
  DT_RETURN_IF_ERROR(picks.AddBias(biases, hidden.both));
  return hidden;
}

absl::Status AddDownBias(const OpCall& call, const Picks& picks, const Tensor& y) {
  if (!AddsDownBias(call)) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const Tensor biases, Contiguous(call.device(), call.operands[kDownBias]));
  return picks.AddBias(biases, y);
}

absl::Status Forward(const OpCall& call) {
  Device& device = call.device();
  DT_ASSIGN_OR_RETURN(const AtExperts there, ToExperts(call));
  DT_ASSIGN_OR_RETURN(const Picks picks, PicksOf(call, there.exchange));
  DT_ASSIGN_OR_RETURN(const Hidden hidden, HiddenOf(call, there, picks));
  DT_ASSIGN_OR_RETURN(const Tensor h,
                      hidden.Activated(device, call.attrs<SwiGluClampAttrs>().clamp));
  DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device, call.operands[kDown]));
  DT_ASSIGN_OR_RETURN(const Tensor y, picks.Rows(h, down.size(2)));
  DT_RETURN_IF_ERROR(picks.Multiply(h, down, /*transposed=*/false, y));
  DT_RETURN_IF_ERROR(AddDownBias(call, picks, y));
  DT_RETURN_IF_ERROR(Weigh(device, hidden.weights, y));
  DT_ASSIGN_OR_RETURN(const ExpertResult made, MakeRows(call, there.exchange, call.results[0]));
  DT_RETURN_IF_ERROR(picks.AddToTokens(y, made.rows));
  return ToTokens(call, there.exchange, made);
}

// With h the activated rows and y = w (h down + b) for each pick:
//   dw = dy . (h down + b) = (dy down^T) . h + dy . b
//   db = w dy, ddown = h^T (w dy), dh = w dy down^T; then the gradients of the first product.
class Gradients {
 public:
  Gradients(const GradCall& call, const AtExperts& there, const Picks& picks, Hidden hidden)
      : call_(call),
        device_(call.device()),
        clamp_(call.attrs<SwiGluClampAttrs>().clamp),
        there_(there),
        picks_(picks),
        hidden_(std::move(hidden)) {}

  absl::Status Write() {
    DT_ASSIGN_OR_RETURN(const Tensor dh, WriteOutputs());
    if (call_.wants(kX) || call_.wants(kGateUp) || call_.wants(kGateUpBias)) {
      DT_RETURN_IF_ERROR(Weigh(device_, hidden_.weights, dh));
      DT_RETURN_IF_ERROR(WriteInputs(dh));
    }
    return ToTokens(call_, there_.exchange, made_);
  }

 private:
  // The gradients of down, its bias and the weights; returns dy down^T.
  absl::StatusOr<Tensor> WriteOutputs() {
    DT_ASSIGN_OR_RETURN(const Tensor dy, picks_.OfTokens(there_.dy));
    DT_ASSIGN_OR_RETURN(const Tensor down, Contiguous(device_, call_.operands[kDown]));
    DT_ASSIGN_OR_RETURN(const Tensor dh, picks_.Rows(dy, down.size(1)));
    DT_RETURN_IF_ERROR(picks_.Multiply(dy, down, /*transposed=*/true, dh));
    DT_ASSIGN_OR_RETURN(const Tensor h, hidden_.Activated(device_, clamp_));
    if (call_.wants(kWeights)) DT_RETURN_IF_ERROR(WriteWeights(dy, dh, h));
    DT_RETURN_IF_ERROR(Weigh(device_, hidden_.weights, dy));
    if (call_.wants(kDown)) DT_RETURN_IF_ERROR(picks_.Contract(h, dy, call_.gradients[kDown]));
    if (call_.wants(kDownBias)) {
      const Tensor& gradient = call_.gradients[kDownBias];
      DT_RETURN_IF_ERROR(AddsDownBias(call_) ? picks_.SumRows(dy, gradient)
                                             : kernels::Fill(device_, gradient, 0));
    }
    return dh;
  }

  absl::Status WriteWeights(const Tensor& dy, const Tensor& dh, const Tensor& h) {
    DT_ASSIGN_OR_RETURN(const Tensor dots, Dots(device_, picks_, dh, h));
    if (AddsDownBias(call_)) {
      DT_ASSIGN_OR_RETURN(const Tensor biases, Contiguous(device_, call_.operands[kDownBias]));
      DT_ASSIGN_OR_RETURN(const Tensor of_picks, picks_.Rows(dy, dy.size(1)));
      DT_RETURN_IF_ERROR(kernels::Fill(device_, of_picks, 0));
      DT_RETURN_IF_ERROR(picks_.AddBias(biases, of_picks));
      DT_ASSIGN_OR_RETURN(const Tensor more, Dots(device_, picks_, dy, of_picks));
      DT_RETURN_IF_ERROR(kernels::Binary(device_, kernels::BinaryOp::kAdd, dots, more, dots));
    }
    DT_ASSIGN_OR_RETURN(made_.emplace_back(), WeightGradients(call_, there_, picks_, dots));
    return absl::OkStatus();
  }

  // The gradients of x, gate_up and its bias, from that of the activated rows. Those of `both` take
  // its place.
  absl::Status WriteInputs(const Tensor& dh) {
    const Tensor& both = hidden_.both;
    DT_ASSIGN_OR_RETURN(const Tensor dgate, Tensor::Empty(device_, dh.dtype(), dh.shape()));
    DT_ASSIGN_OR_RETURN(const Tensor dup, Tensor::Empty(device_, dh.dtype(), dh.shape()));
    DT_RETURN_IF_ERROR(
        kernels::ClampedSwiGluGrad(device_, Half(both, 0), Half(both, 1), clamp_, dh, dgate, dup));
    DT_RETURN_IF_ERROR(kernels::Copy(device_, dgate, Half(both, 0)));
    DT_RETURN_IF_ERROR(kernels::Copy(device_, dup, Half(both, 1)));
    if (call_.wants(kGateUp)) {
      DT_RETURN_IF_ERROR(picks_.Contract(hidden_.x, both, call_.gradients[kGateUp]));
    }
    if (call_.wants(kGateUpBias)) {
      DT_RETURN_IF_ERROR(picks_.SumRows(both, call_.gradients[kGateUpBias]));
    }
    if (!call_.wants(kX)) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(const Tensor matrices, Contiguous(device_, call_.operands[kGateUp]));
    DT_RETURN_IF_ERROR(picks_.Multiply(both, matrices, /*transposed=*/true, hidden_.x));
    DT_ASSIGN_OR_RETURN(made_.emplace_back(),
                        MakeRows(call_, there_.exchange, call_.gradients[kX]));
    return picks_.AddToTokens(hidden_.x, made_.back().rows);
  }

  const GradCall& call_;
  Device& device_;
  const SwiGluClamp clamp_;
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
absl::Status ClampedExpertMlpForward(const OpCall& call) {
  return NoThrow([&] { return Forward(call); });
}
absl::Status ClampedExpertMlpBackward(const GradCall& call) {
  return NoThrow([&] { return Backward(call); });
}

// p!: a gate and its up stay together.
absl::StatusOr<RuleText> Rule(absl::Span<const Dims>, AttrsView) {
  return RuleText{
      "... i!, ... c @e, ... c, e<... i! (f p!), e<... (f p!), e<... f d, e<... d -> ... d",
      {{"p", 2}}};
}

const OpDef kClampedExpertMlpOp = {
    .name = kName,
    .describe = Rule,
    .attrs = &kAttrsType<SwiGluClampAttrs>,
    .operand_types = {TypeSet::Floats(), TypeSet::Integers(), TypeSet::Floats(), TypeSet::Floats(),
                      TypeSet::Floats(), TypeSet::Floats(), TypeSet::Floats()},
    .check = Check,
    .every_device = {ClampedExpertMlpForward, ClampedExpertMlpBackward},
    .saved_operands = 0b1111111,
    .prepare = PrepareTokens,
};

}  // namespace

absl::Span<const OpDef* const> ClampedExpertMlpOps() {
  static constexpr const OpDef* kOps[] = {&kClampedExpertMlpOp};
  return kOps;
}

}  // namespace internal

TensorOr ClampedExpertMlp(const TensorOr& x, const TensorOr& experts, const TensorOr& weights,
                          const TensorOr& gate_up, const TensorOr& gate_up_bias,
                          const TensorOr& down, const TensorOr& down_bias,
                          const SwiGluClamp& clamp) {
  return Dispatch(internal::kClampedExpertMlpOp,
                  {&x, &experts, &weights, &gate_up, &gate_up_bias, &down, &down_bias},
                  internal::SwiGluClampAttrs{clamp});
}

}  // namespace dtensor
