// A rule, and below it the operands' shapes and their placements on a mesh of 2 x 3, each on a line
// of its own with ';' between operands.
#include "dtensor/rules/op_rule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

constexpr size_t kMostOperands = 4, kMostDims = 6;

bool Has(absl::Span<const RuleTerm> terms, int letter) {
  for (const RuleTerm& term : terms) {
    for (const auto& dim : term.dims) {
      if (std::find(dim.begin(), dim.end(), letter) != dim.end()) return true;
    }
  }
  return false;
}

// What Bind requires: every letter of a result in an operand.
bool CanBeBound(const OpRule& rule) {
  for (const RuleTerm& result : rule.results()) {
    for (const auto& dim : result.dims) {
      for (const int letter : dim) {
        if (!Has(rule.operands(), letter)) return false;
      }
    }
  }
  return true;
}

// Empty where the line says none.
std::vector<Dims> ShapesIn(absl::string_view line) {
  std::vector<Dims> shapes;
  for (const absl::string_view text : absl::StrSplit(line, ';')) {
    const absl::StatusOr<Dims> shape = ParseDims(text);
    if (!IsRead(shape) || shape->size() > kMostDims) return {};
    shapes.push_back(*shape);
  }
  return shapes.size() > kMostOperands ? std::vector<Dims>() : shapes;
}

// The operands laid as the line says, replicated where it says nothing that is possible.
std::vector<RuleOperand> OperandsIn(absl::string_view line, absl::Span<const Dims> shapes) {
  const DeviceMesh mesh = DeviceMesh::Create({{"a", 2}, {"b", 3}}).value();
  std::vector<absl::string_view> texts = absl::StrSplit(line, ';');
  texts.resize(shapes.size());
  std::vector<RuleOperand> operands;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const absl::StatusOr<Placements> placements = ParsePlacements(texts[i]);
    const absl::StatusOr<Layout> layout = placements.ok()
                                              ? Layout::FromPlacements(mesh, *placements, shapes[i])
                                              : placements.status();
    operands.push_back(
        {IsRead(layout) ? *layout : Layout::Replicated(mesh, static_cast<int>(shapes[i].size()))});
  }
  return operands;
}

void TrySolve(const BoundRule& rule, absl::Span<const RuleOperand> operands) {
  for (const RuleLinearity linearity :
       {RuleLinearity::kNone, RuleLinearity::kJoint, RuleLinearity::kMulti,
        RuleLinearity::kIncreasing, RuleLinearity::kDecreasing, RuleLinearity::kView}) {
    const absl::StatusOr<RuleAssignment> assignment =
        ChooseAssignment("Op", rule, linearity, operands);
    if (!IsRead(assignment)) continue;
    Require(assignment->operands.size() == operands.size(), "a layout for each operand");
    for (size_t i = 0; i < rule.result_shapes().size(); ++i) {
      Require(assignment->results[i].ndim() == static_cast<int>(rule.result_shapes()[i].size()),
              "a result's layout has its dimensions");
    }
  }
}

}  // namespace

void Try(absl::string_view input) {
  const std::vector<absl::string_view> lines = Lines(input, 3);
  const absl::StatusOr<OpRule> rule = OpRule::Parse(lines[0]);
  if (!IsRead(rule)) return;
  const std::string text = rule->ToString();
  RequireSame(*rule, OpRule::Parse(text), text);
  const std::vector<Dims> shapes = ShapesIn(lines[1]);
  if (shapes.empty() || !CanBeBound(*rule)) return;
  const absl::StatusOr<BoundRule> bound = BoundRule::Bind("Op", *rule, shapes);
  if (!IsRead(bound)) return;
  const std::string bound_text = bound->rule().ToString();
  RequireSame(bound->rule(), OpRule::Parse(bound_text), bound_text);
  TrySolve(*bound, OperandsIn(lines[2], shapes));
}

}  // namespace dtensor::fuzz
