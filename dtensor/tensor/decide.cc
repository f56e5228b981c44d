#include "dtensor/tensor/decide.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/implicit_moves.h"
#include "dtensor/tensor/op_checks.h"

namespace dtensor {
namespace {

uint64_t DecisionLineage(const OpDef& op, AttrsView attrs) {
  Digest digest;
  digest.Add(op.name);
  digest.Add(static_cast<int64_t>(attrs.digest()));
  return digest.value();
}

absl::StatusOr<BoundRule> BindRule(const OpDef& op, absl::Span<const Spec* const> operands,
                                   AttrsView attrs) {
  std::vector<Dims> shapes;
  for (const Spec* operand : operands) shapes.push_back(operand->shape);
  RuleText text;
  if (op.describe != nullptr) {
    DT_ASSIGN_OR_RETURN(text, op.describe(shapes, attrs));
  } else {
    text.text = op.rule;
  }
  const absl::StatusOr<OpRule> rule = OpRule::Parse(text.text);
  if (!rule.ok()) return InvalidArgument({op.name, ": ", rule.status().message()});
  return BoundRule::Bind(op.name, *rule, shapes, text.sizes);
}

// Sets the specs of operands, gradients and results from the assignment.
absl::Status InternSpecs(Context& context, const LayoutChoice& choice, Decision& decision) {
  const OpDef& op = *decision.op;
  const RuleAssignment& assignment = decision.assignment;
  const auto intern = [&](const Layout& layout, const Dims& shape,
                          DType dtype) -> absl::StatusOr<const Spec*> {
    DT_ASSIGN_OR_RETURN(SpecPtr spec, context.Intern(layout, shape, dtype));
    decision.kept.push_back(std::move(spec));
    return decision.kept.back().get();
  };
  for (size_t i = 0; i < decision.given.size(); ++i) {
    const Spec* source = decision.given[i];
    DT_ASSIGN_OR_RETURN(const Spec* spec,
                        intern(assignment.operands[i], source->shape, source->dtype));
    DT_ASSIGN_OR_RETURN(const Spec* gradient,
                        intern(assignment.gradients[i], source->shape, source->dtype));
    decision.operands.push_back(spec);
    decision.gradients.push_back(gradient);
  }
  for (size_t r = 0; r < assignment.results.size(); ++r) {
    const DType dtype = op.result_dtype != nullptr
                            ? op.result_dtype(decision.given, decision.attrs, static_cast<int>(r))
                            : decision.given[0]->dtype;
    const Dims& shape = decision.rule.result_shapes()[r];
    DT_ASSIGN_OR_RETURN(const Spec* spec, intern(assignment.results[r], shape, dtype));
    DT_ASSIGN_OR_RETURN(const Spec* dual, intern(assignment.results[r].Dual(), shape, dtype));
    decision.results.push_back(spec);
    decision.result_gradient_specs.push_back(dual);
    decision.returned.push_back(spec);
    if (r >= choice.results.size() || !choice.results[r]) continue;
    DT_ASSIGN_OR_RETURN(decision.returned[r], intern(*choice.results[r], shape, dtype));
  }
  return absl::OkStatus();
}

// Whether both specs give every rank the same shard, so that only their layouts' names may differ.
absl::StatusOr<bool> Relabels(Context& context, const Spec* from, const Spec* to) {
  if (from == to) return true;
  for (int axis = 0; axis < from->mesh().num_axes(); ++axis) {
    if (from->layout.use(axis) != to->layout.use(axis)) return false;
  }
  DT_ASSIGN_OR_RETURN(const auto plan, context.Plan(from, to));
  return plan->plan().is_view();
}

// Solves the rule for the operands as they came or, if `layouts` is not empty, in those layouts.
absl::StatusOr<RuleAssignment> Assign(const Decision& decision, absl::Span<const Layout> layouts) {
  std::vector<RuleOperand> operands;
  for (size_t i = 0; i < decision.given.size(); ++i) {
    const Spec& spec = *decision.given[i];
    const Layout& layout = layouts.empty() ? spec.layout : layouts[i];
    operands.push_back({layout, spec.dtype, (decision.pinned >> i & 1) != 0});
  }
  return ChooseAssignment(decision.op->name, decision.rule, decision.op->linearity, operands);
}

// Sets decision.assignment.
absl::StatusOr<LayoutChoice> ChooseLayouts(Decision& decision) {
  DT_ASSIGN_OR_RETURN(decision.assignment, Assign(decision, {}));
  const OpDef& op = *decision.op;
  LayoutChoice choice;
  if (op.choose_layouts == nullptr) return choice;
  DT_ASSIGN_OR_RETURN(choice, op.choose_layouts({decision.given, decision.attrs,
                                                 decision.assignment, *decision.options}));
  DT_RETURN_IF_ERROR(CheckChoice(op, decision.given, choice));
  if (!choice.operands.empty()) {
    DT_ASSIGN_OR_RETURN(decision.assignment, Assign(decision, choice.operands));
  }
  return choice;
}

}  // namespace

absl::StatusOr<DecisionPtr> MakeDecision(Context& context, const OpDef& op,
                                         absl::Span<const SpecPtr> given, uint32_t pinned,
                                         AttrsView attrs) {
  const CountedPtr<Decision> decision(new Decision);
  DT_RETURN_IF_ERROR(CheckOpDef(op));
  DT_RETURN_IF_ERROR(CheckAttrs(op, attrs));
  decision->op = &op;
  decision->functions = op.On(context.device().kind());
  decision->attrs = Attrs(attrs);
  decision->lineage = DecisionLineage(op, attrs);
  decision->pinned = pinned;
  decision->given.assign(given.begin(), given.end());
  decision->kept.assign(given.begin(), given.end());
  decision->on_mesh = decision->given[0]->on_mesh;
  DT_RETURN_IF_ERROR(CheckHasForward(*decision, context.device().kind()));
  DT_RETURN_IF_ERROR(op.CheckTypes(decision->given));
  if (op.check != nullptr) DT_RETURN_IF_ERROR(op.check(decision->given, attrs));
  DT_ASSIGN_OR_RETURN(decision->rule, BindRule(op, decision->given, attrs));
  decision->options = context.kept_redistribution_options();
  DT_ASSIGN_OR_RETURN(const LayoutChoice choice, ChooseLayouts(*decision));
  DT_RETURN_IF_ERROR(InternSpecs(context, choice, *decision));
  FindReductions(*decision);
  if (op.view) {
    DT_ASSIGN_OR_RETURN(decision->is_alias,
                        Relabels(context, decision->given[0], decision->operands[0]));
  }
  if (op.prepare != nullptr && decision->on_mesh) {
    DT_ASSIGN_OR_RETURN(decision->state,
                        op.prepare({decision->operands, decision->rule, decision->assignment,
                                    decision->attrs, context.rank()}));
  }
  decision->moves_asked_for = choice.asked_for;
  DT_RETURN_IF_ERROR(CheckImplicit(context, *decision));
  return DecisionPtr(decision);
}

}  // namespace dtensor
