// ChooseAssignment: searches the splits that letters could have for the cheapest.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/rules/axis_mask.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The layouts of a composite dimension's letters, outermost first; nullopt if a shard spans a
// boundary between letters.
std::optional<std::vector<DimLayout>> Decompose(const DeviceMesh& mesh, const BoundRule& rule,
                                                const DimLayout& dim,
                                                absl::Span<const int> letters) {
  std::vector<DimLayout> out;
  DimLayout rest = dim;
  for (size_t i = 0; i + 1 < letters.size(); ++i) {
    int64_t inner = 1;
    for (size_t j = i + 1; j < letters.size(); ++j) inner *= rule.letter_size(letters[j]);
    auto cut = SplitDim(mesh, rest, rule.letter_size(letters[i]), inner);
    if (!cut.ok()) return std::nullopt;
    out.push_back(std::move(cut->first));
    rest = std::move(cut->second);
  }
  out.push_back(std::move(rest));
  return out;
}

// Every split that a letter could have: those of the operands, without any subset of their axes.
class Candidates {
 public:
  Candidates(const BoundRule& rule, absl::Span<const RuleOperand> operands)
      : rule_(rule), lists_(rule.rule().letters().size()) {
    for (auto& list : lists_) list.emplace_back();
    for (size_t i = 0; i < operands.size(); ++i) {
      const RuleTerm& term = rule.rule().operands()[i];
      for (size_t d = 0; d < term.dims.size(); ++d)
        Offer(operands[i].layout, static_cast<int>(d), term.dims[d]);
    }
  }
  const std::vector<DimLayout>& of(int letter) const { return lists_[letter]; }

 private:
  void Offer(const Layout& layout, int d, const absl::InlinedVector<int, 2>& letters) {
    const DimLayout& dim = layout.dim(d);
    if (letters.empty() || !IsSplit(dim)) return;
    const AxisMask all = MaskOf(AxesOf(dim));
    // All subsets of axes to leave out, in ascending order of their bits, so the empty one first.
    for (AxisMask removed = 0;; removed = (removed - all) & all) {
      if (auto parts =
              Decompose(layout.mesh(), rule_, WithoutAxes(dim, AxesIn(removed)), letters)) {
        for (size_t i = 0; i < letters.size(); ++i) Keep(letters[i], (*parts)[i]);
      }
      if (removed == all) return;
    }
  }

  void Keep(int letter, const DimLayout& dim) {
    if (rule_.rule().letters()[letter].whole || !IsSplit(dim)) return;
    auto& list = lists_[letter];
    if (std::find(list.begin(), list.end(), dim) == list.end()) list.push_back(dim);
  }

  const BoundRule& rule_;
  std::vector<std::vector<DimLayout>> lists_;
};

std::string OperandsText(absl::Span<const RuleOperand> operands) {
  return absl::StrJoin(operands, ", ", [](std::string* out, const RuleOperand& o) {
    absl::StrAppend(out, o.layout.ToString());
  });
}

absl::Status CheckOneMesh(absl::string_view op, absl::Span<const RuleOperand> operands) {
  const DeviceMesh& mesh = operands[0].layout.mesh();
  for (const RuleOperand& operand : operands) {
    if (operand.layout.mesh() == mesh) continue;
    return InvalidArgument({op, ": operands lie on unlike meshes, ", mesh.ToString(), " and ",
                            operand.layout.mesh().ToString(), " (", OperandsText(operands),
                            "); make all on one mesh, or Redistribute them to one"});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RuleAssignment> ChooseAssignment(absl::string_view op, const BoundRule& rule,
                                                RuleLinearity linearity,
                                                absl::Span<const RuleOperand> operands) {
  DT_CHECK(!operands.empty());
  const DeviceMesh& mesh = operands[0].layout.mesh();
  DT_RETURN_IF_ERROR(CheckOneMesh(op, operands));
  const Candidates candidates(rule, operands);
  std::vector<int> open;  // letters that might be split; at most as many as there are splits
  for (size_t l = 0; l < rule.rule().letters().size(); ++l) {
    if (candidates.of(l).size() > 1) open.push_back(static_cast<int>(l));
  }
  std::vector<DimLayout> choice(rule.rule().letters().size());
  std::optional<RuleAssignment> best;
  // Depth first over the letters. A candidate is skipped if an earlier letter uses one of its axes,
  // unless the letter is streamed, or another is sent to it: DeriveAssignment() checks these.
  const auto visit = [&](const auto& self, size_t depth, AxisMask used) -> void {
    if (best && best->cost == 0) return;
    if (depth == open.size()) {
      auto found = DeriveAssignment(op, rule, linearity, mesh, choice, operands);
      if (found.ok() && (!best || found->cost < best->cost)) best = *std::move(found);
      return;
    }
    const int letter = open[depth];
    const auto& list = candidates.of(letter);
    for (size_t i = 0; i < list.size(); ++i) {
      const DimLayout& dim = list[(i + 1) % list.size()];  // splits first, not split last
      const RuleLetter& of = rule.rule().letters()[letter];
      const bool may_share = of.past >= 0 || of.reached;
      const AxisMask axes = may_share ? 0 : MaskOf(AxesOf(dim));
      if (axes & used) continue;
      choice[letter] = dim;
      self(self, depth + 1, used | axes);
    }
  };
  visit(visit, 0, 0);
  if (!best)
    return InvalidArgument({op, ": no placement fits the operands ", OperandsText(operands)});
  return *std::move(best);
}

}  // namespace dtensor
