// DeriveAssignment: the layouts that follow if letters are split in a given way.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/rules/axis_mask.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The layout of a dimension composed of letters. Errors: as JoinDims.
absl::StatusOr<DimLayout> Compose(const BoundRule& rule, absl::Span<const int> letters,
                                  absl::Span<const DimLayout> layouts) {
  DimLayout out = layouts[letters.back()];
  int64_t size = rule.letter_size(letters.back());
  for (size_t i = letters.size() - 1; i-- > 0;) {
    DT_ASSIGN_OR_RETURN(out,
                        JoinDims(layouts[letters[i]], rule.letter_size(letters[i]), out, size));
    size *= rule.letter_size(letters[i]);
  }
  return out;
}

// For one axis that splits no letter: which operands stay Partial on it, and with which op the
// results are then Partial.
struct Passing {
  uint32_t operands = 0;  // bit i: operand i stays Partial
  ReduceOp op = ReduceOp::kSum;
};

bool IsSumLike(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }

Passing PassesOn(int axis, RuleLinearity linearity, absl::Span<const RuleOperand> operands) {
  uint32_t partial = 0;
  std::optional<ReduceOp> op;
  bool alike = true;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].layout.use(axis) != Layout::AxisUse::kPartial) continue;
    partial |= 1u << i;
    alike &= !op || *op == operands[i].layout.partial_op(axis);
    op = operands[i].layout.partial_op(axis);
  }
  if (partial == 0 || !alike) return {};
  const bool all = partial == (uint64_t{1} << operands.size()) - 1;
  const bool one = (partial & (partial - 1)) == 0;
  const bool extremum = *op == ReduceOp::kMax || *op == ReduceOp::kMin;
  switch (linearity) {
    case RuleLinearity::kNone:
      return {};
    case RuleLinearity::kJoint:
      return all && IsSumLike(*op) ? Passing{partial, *op} : Passing{};
    case RuleLinearity::kMulti:
      return one && IsSumLike(*op) ? Passing{partial, *op} : Passing{};
    case RuleLinearity::kIncreasing:
      return all && one && extremum ? Passing{partial, *op} : Passing{};
    case RuleLinearity::kDecreasing:
      if (!(all && one && extremum)) return {};
      return {partial, *op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax};
    case RuleLinearity::kView:
      return all ? Passing{partial, *op} : Passing{};
  }
  return {};
}

// The axes on which a tensor is Partial: all with one op, or with sum and avg.
struct PartialAxes {
  AxisMask axes = 0, averaged = 0;
  ReduceOp op = ReduceOp::kSum;  // of those that do not average
  bool Fits(ReduceOp more_op) const {
    return axes == 0 || op == more_op || (IsSumLike(op) && IsSumLike(more_op));
  }
  bool Add(AxisMask more, ReduceOp more_op) {
    if (more == 0) return true;
    if (!Fits(more_op)) return false;
    axes |= more;
    if (more_op == ReduceOp::kAvg) {
      averaged |= more;
    } else {
      op = more_op;
    }
    return true;
  }
};

// For each of `count` letters, whether the term has it.
std::vector<bool> LettersIn(const RuleTerm& term, size_t count) {
  std::vector<bool> present(count, false);
  for (const auto& dim : term.dims) {
    for (int letter : dim) present[letter] = true;
  }
  return present;
}

// The axes that split a letter and one that is sent to it.
AxisMask SharedAxes(const OpRule& rule, absl::Span<const AxisMask> letter_axes, size_t letter) {
  if (!rule.letters()[letter].reached) return 0;
  AxisMask sent = 0;
  for (size_t l = 0; l < letter_axes.size(); ++l) {
    if (rule.letters()[l].rest) sent |= letter_axes[l];
  }
  return letter_axes[letter] & sent;
}

// The axes that split each letter. Errors: kInvalidArgument if an axis splits two letters, other
// than a streamed letter and the one that it is streamed past, or a letter and one that is sent to
// it.
absl::StatusOr<std::vector<AxisMask>> LetterAxes(absl::string_view op, const OpRule& rule,
                                                 absl::Span<const DimLayout> letters) {
  std::vector<AxisMask> axes;
  for (const DimLayout& letter : letters) axes.push_back(MaskOf(AxesOf(letter)));
  AxisMask used = 0;
  for (size_t l = 0; l < axes.size(); ++l) {
    const int past = rule.letters()[l].past;
    if (past >= 0 && axes[l] == axes[past]) continue;
    const AxisMask own = axes[l] & ~SharedAxes(rule, axes, l);
    if (used & own) return InvalidArgument({op, ": one mesh axis splits two letters"});
    used |= own;
  }
  return axes;
}

absl::StatusOr<Layout> TermLayout(const DeviceMesh& mesh, const BoundRule& rule,
                                  const RuleTerm& term, absl::Span<const DimLayout> letters,
                                  const PartialAxes& partial) {
  absl::InlinedVector<DimLayout, 4> dims;
  for (const auto& dim : term.dims) {
    dims.emplace_back();
    if (dim.empty()) continue;
    DT_ASSIGN_OR_RETURN(dims.back(), Compose(rule, dim, letters));
  }
  return Layout::Create(mesh, dims, AxesIn(partial.axes), partial.op, AxesIn(partial.averaged));
}

absl::StatusOr<std::vector<Layout>> TermLayouts(const DeviceMesh& mesh, const BoundRule& rule,
                                                absl::Span<const RuleTerm> terms,
                                                absl::Span<const DimLayout> letters,
                                                absl::Span<const PartialAxes> partial) {
  std::vector<Layout> layouts;
  for (size_t i = 0; i < terms.size(); ++i) {
    DT_ASSIGN_OR_RETURN(Layout layout, TermLayout(mesh, rule, terms[i], letters, partial[i]));
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

// On which axes an assignment makes operands, results and the operands' gradients Partial.
struct PartialTensors {
  std::vector<PartialAxes> operands, results, gradients;
};

// A result is Partial on the axes that shard a letter which it lacks.
absl::StatusOr<PartialAxes> ResultPartial(absl::string_view op, const OpRule& rule,
                                          const RuleTerm& result,
                                          absl::Span<const AxisMask> letter_axes) {
  PartialAxes partial;
  const std::vector<bool> present = LettersIn(result, letter_axes.size());
  for (size_t l = 0; l < letter_axes.size(); ++l) {
    const RuleLetter& letter = rule.letters()[l];
    const AxisMask summed = letter_axes[l] & ~SharedAxes(rule, letter_axes, l);
    if (summed == 0 || present[l] || letter.merged || letter.past >= 0) continue;
    if (!partial.Add(summed, letter.reduce)) {
      return InvalidArgument({op, ": results would be Partial with two ops"});
    }
  }
  return partial;
}

// An operand's gradient is a Partial sum on the axes that shard a letter which the operand lacks,
// unless they shard the operand as well.
PartialAxes GradientPartial(const RuleTerm& operand, absl::Span<const AxisMask> letter_axes) {
  const std::vector<bool> present = LettersIn(operand, letter_axes.size());
  AxisMask absent = 0, splitting = 0;
  for (size_t l = 0; l < letter_axes.size(); ++l) {
    (present[l] ? splitting : absent) |= letter_axes[l];
  }
  PartialAxes partial;
  partial.Add(absent & ~splitting, ReduceOp::kSum);
  return partial;
}

// Operands that are Partial on `axis` stay so if the ops agree: then results are Partial there too.
// The gradient of an operand that is not Partial there has a term for each term of the others, so
// it is Partial with their op.
void KeepPartial(int axis, const Passing& passing, absl::Span<const RuleOperand> operands,
                 PartialTensors& partial) {
  if (passing.operands == 0) return;
  const auto passes = [&](size_t i) { return (passing.operands >> i & 1) != 0; };
  const auto fits = [&](const PartialAxes& axes) { return axes.Fits(passing.op); };
  bool all_fit = std::all_of(partial.results.begin(), partial.results.end(), fits);
  for (size_t i = 0; i < operands.size(); ++i) {
    all_fit = all_fit && (passes(i) || fits(partial.gradients[i]));
  }
  if (!all_fit) return;
  const AxisMask bit = AxisMask{1} << axis;
  for (PartialAxes& result : partial.results) result.Add(bit, passing.op);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (passes(i)) {
      partial.operands[i].Add(bit, operands[i].layout.partial_op(axis));
    } else {
      partial.gradients[i].Add(bit, passing.op);
    }
  }
}

// What follows from the axes that split letters, and, on the other axes, from operands that are
// Partial already.
absl::StatusOr<PartialTensors> DerivePartial(absl::string_view op, const OpRule& rule,
                                             RuleLinearity linearity, const DeviceMesh& mesh,
                                             absl::Span<const AxisMask> letter_axes,
                                             absl::Span<const RuleOperand> operands) {
  PartialTensors partial;
  partial.operands.resize(operands.size());
  for (const RuleTerm& result : rule.results()) {
    DT_ASSIGN_OR_RETURN(partial.results.emplace_back(),
                        ResultPartial(op, rule, result, letter_axes));
  }
  for (const RuleTerm& operand : rule.operands()) {
    partial.gradients.push_back(GradientPartial(operand, letter_axes));
  }
  AxisMask splitting = 0;
  for (const AxisMask axes : letter_axes) splitting |= axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (splitting >> axis & 1) continue;
    KeepPartial(axis, PassesOn(axis, linearity, operands), operands, partial);
  }
  return partial;
}

// Of moving the operands to `layouts`.
double CostOfMoving(const BoundRule& rule, absl::Span<const RuleOperand> operands,
                    absl::Span<const Layout> layouts) {
  constexpr double kPinned = 1e15;  // larger than any tensor's cost, so pinned operands move last
  double cost = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    const RuleOperand& operand = operands[i];
    cost += MovingCost(operand.layout, layouts[i], rule.operand_shapes()[i], operand.dtype) *
            (operand.pinned ? kPinned : 1);
  }
  return cost;
}

}  // namespace

absl::StatusOr<RuleAssignment> DeriveAssignment(absl::string_view op, const BoundRule& rule,
                                                RuleLinearity linearity, const DeviceMesh& mesh,
                                                absl::Span<const DimLayout> letters,
                                                absl::Span<const RuleOperand> operands) {
  const OpRule& terms = rule.rule();
  DT_ASSIGN_OR_RETURN(const auto letter_axes, LetterAxes(op, terms, letters));
  DT_ASSIGN_OR_RETURN(const PartialTensors partial,
                      DerivePartial(op, terms, linearity, mesh, letter_axes, operands));
  RuleAssignment out;
  out.letters.assign(letters.begin(), letters.end());
  DT_ASSIGN_OR_RETURN(out.operands,
                      TermLayouts(mesh, rule, terms.operands(), letters, partial.operands));
  DT_ASSIGN_OR_RETURN(out.gradients,
                      TermLayouts(mesh, rule, terms.operands(), letters, partial.gradients));
  DT_ASSIGN_OR_RETURN(out.results,
                      TermLayouts(mesh, rule, terms.results(), letters, partial.results));
  out.cost = CostOfMoving(rule, operands, out.operands);
  return out;
}

AxisList SentAxes(const OpRule& rule, const RuleAssignment& assignment, size_t letter) {
  if (!rule.letters()[letter].reached) return {};
  std::vector<AxisMask> axes;
  for (const DimLayout& of : assignment.letters) axes.push_back(MaskOf(AxesOf(of)));
  return AxesIn(SharedAxes(rule, axes, letter));
}

}  // namespace dtensor
