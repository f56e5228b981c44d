#include "dtensor/tensor/op_checks.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

absl::Status CheckOperandCount(const OpDef& op, size_t operands) {
  if (operands > 0 && operands <= OpRule::kMaxOperands) return absl::OkStatus();
  return InvalidArgument({op.name, ": got ", absl::StrCat(operands), " operands; give 1 to ",
                          absl::StrCat(OpRule::kMaxOperands)});
}

absl::Status CheckOpDef(const OpDef& op) {
  const auto lacks = [&](absl::string_view what) {
    return InvalidArgument({op.name, ": the operator's OpDef has no ", what});
  };
  if (op.rule == nullptr && op.describe == nullptr) return lacks("rule, and no `describe`");
  const bool for_some = op.host.forward != nullptr || op.cuda.forward != nullptr;
  if (op.every_device.forward == nullptr && !for_some) return lacks("forward");
  if (op.every_device.forward != nullptr && for_some) {
    return InvalidArgument({op.name,
                            ": the operator's OpDef has functions for every device, and others for "
                            "some; give it one or the other"});
  }
  for (size_t i = 0; i < op.separate_gradients.size(); ++i) {
    const uint32_t separate = op.separate_gradients[i], read = separate & ~OpDef::kAlone;
    const bool is_alone = separate != read && (read & ~op.saved_operands) == 0;
    if (separate == 0 || (is_alone && !op.sets_gradients)) continue;
    return InvalidArgument({op.name, ": the operator's separate_gradients[", absl::StrCat(i),
                            "] is no OpDef::kAlone with bits of saved_operands, or the operator ",
                            "sets_gradients; leave it out, or mend it"});
  }
  return absl::OkStatus();
}

absl::Status CheckAttrs(const OpDef& op, AttrsView attrs) {
  if (attrs.type() == op.attrs) return absl::OkStatus();
  const auto is = [](const AttrsType* type) { return type == nullptr ? "none" : "some"; };
  return InvalidArgument({op.name, ": got attributes (", is(attrs.type()),
                          ") of another type than OpDef::attrs names (", is(op.attrs),
                          "); Dispatch takes a value of that type"});
}

namespace {

absl::Status NotOnDevice(const Decision& decision, absl::string_view function,
                         Device::Kind device) {
  const absl::string_view name = ToString(device);
  return absl::UnimplementedError(
      absl::StrCat(decision.op->name, ": its OpDef has no ", function, " for ", name, ", where ",
                   SpecsText(decision.given), " lie", decision.given.size() == 1 ? "s" : "",
                   "; compute it on another device, or give the OpDef one"));
}

}  // namespace

absl::Status CheckHasForward(const Decision& decision, Device::Kind device) {
  if (decision.functions.forward != nullptr) return absl::OkStatus();
  return NotOnDevice(decision, "forward", device);
}

absl::Status CheckHasBackward(const Decision& decision, Device::Kind device) {
  if (decision.functions.backward != nullptr || !decision.op->differentiable()) {
    return absl::OkStatus();
  }
  return NotOnDevice(decision, "backward", device);
}

absl::Status CheckChoice(const OpDef& op, absl::Span<const Spec* const> operands,
                         const LayoutChoice& choice) {
  const auto fits = [](const Spec* operand, const Layout& layout) {
    return layout.ndim() == operand->ndim() && layout.mesh() == operand->mesh();
  };
  if (choice.operands.empty()) return absl::OkStatus();
  if (absl::c_equal(operands, choice.operands, fits)) return absl::OkStatus();
  return InvalidArgument({op.name,
                          ": OpDef::choose_layouts does not give a layout for each operand",
                          " on its mesh, of its dimensions (", SpecsText(operands), ")"});
}

absl::Status CheckSet(const OpDef& op, absl::string_view what, size_t i, const Tensor& tensor,
                      const Spec& spec) {
  if (tensor.defined() && tensor.dtype() == spec.dtype && tensor.shape() == spec.local_shape)
    return absl::OkStatus();
  const std::string got = !tensor.defined()
                              ? std::string("left it undefined")
                              : absl::StrCat("set one of shape ", DimsToString(tensor.shape()),
                                             " and ", ToString(tensor.dtype()));
  return absl::InternalError(absl::StrCat(
      op.name, ": the operator's ", what, " sets ", what == "forward" ? "results" : "gradients",
      ", and of number ", i, ", whose local shape is ", DimsToString(spec.local_shape), " of ",
      spec.ToString(), ", it ", got));
}

absl::Status CheckBackward(const GradCall& call, absl::Span<const SpecPtr> gradients) {
  const OpDef& op = *call.decision.op;
  const auto fails = [&](auto... words) {
    return absl::InternalError(absl::StrCat(op.name, ": the operator's backward ", words...));
  };
  if (const int i = call.operands.missed(); i >= 0) {
    return fails("read operand ", i, ", which OpDef::saved_operands does not name");
  }
  if (const int r = call.results.missed(); r >= 0) {
    return fails("read result ", r, ", which OpDef::saved_results does not name");
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!call.wants(static_cast<int>(i))) continue;
    if (!call.gradients.touched(static_cast<int>(i))) {
      return fails("wrote no gradient of operand ", i, ", which was wanted");
    }
    if (!op.sets_gradients) continue;
    DT_RETURN_IF_ERROR(CheckSet(op, "backward", i, call.gradients[i], *gradients[i]));
  }
  return absl::OkStatus();
}

absl::Status FailIn(Context& context, const OpDef& op, const absl::Status& error) {
  Communicator& communicator = context.communicator();
  if (absl::StartsWith(error.message(), op.name)) return communicator.Fail(error);
  return communicator.Fail(
      absl::Status(error.code(), absl::StrCat(op.name, ": ", error.message())));
}

bool ReducesByAnotherOpThanSum(const Layout& from, const Layout& to) {
  const ReduceOp op = from.partial_op();
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return false;
  if (from.mesh() != to.mesh()) return true;  // a move to another mesh reduces all terms
  return absl::c_any_of(from.partial_axes(), [&](int axis) {
    return to.use(axis) != Layout::AxisUse::kPartial || to.partial_op() != op;
  });
}

void FindReductions(Decision& decision) {
  for (size_t i = 0; i < decision.given.size(); ++i) {
    if (ReducesByAnotherOpThanSum(decision.given[i]->layout, decision.operands[i]->layout))
      decision.reduces |= uint32_t{1} << i;
  }
  for (size_t r = 0; r < decision.results.size(); ++r) {
    if (ReducesByAnotherOpThanSum(decision.results[r]->layout, decision.returned[r]->layout))
      decision.reduces = ~uint32_t{0};
  }
}

absl::Status CheckGradientsPass(const Decision& decision, uint32_t wanted) {
  for (size_t i = 0; i < decision.given.size(); ++i) {
    if (!(decision.reduces & wanted & (uint32_t{1} << i))) continue;
    const Spec& source = *decision.given[i];
    if (!ReducesByAnotherOpThanSum(source.layout, decision.operands[i]->layout)) continue;
    return NoGradientPasses(decision.op->name, absl::StrCat("operand ", i), source);
  }
  if ((decision.reduces & wanted) == 0) return absl::OkStatus();
  for (size_t r = 0; r < decision.results.size(); ++r) {
    const Spec& result = *decision.results[r];
    if (!ReducesByAnotherOpThanSum(result.layout, decision.returned[r]->layout)) continue;
    return NoGradientPasses(decision.op->name, absl::StrCat("result ", r), result);
  }
  return absl::OkStatus();
}

absl::Status NoGradientPasses(absl::string_view op, absl::string_view what, const Spec& from) {
  return InvalidArgument({op, ": a gradient is wanted of ", what, ", ", from.ToString(),
                          ", and its reduction by ", ToString(from.layout.partial_op()),
                          " passes none on; Detach() it, or bring what is sharded together before "
                          "it becomes Partial(",
                          ToString(from.layout.partial_op()), ")"});
}

}  // namespace dtensor
