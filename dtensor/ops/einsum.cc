// Einsum: its text is the operator's rule, so layouts of results and of gradients follow from it;
// what is left to do is each rank's own contraction.
#include <memory>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/ops/contraction.h"
#include "dtensor/ops/op_defs.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"

namespace dtensor {
namespace internal {
namespace {

// A term's letters, those of joined dimensions apart.
TensorLetters LettersOf(const RuleTerm& term) {
  TensorLetters letters;
  for (const auto& dim : term.dims) letters.insert(letters.end(), dim.begin(), dim.end());
  return letters;
}

// The rule's letters in each tensor, and their sizes on this rank.
struct EinsumState final : OpState {
  absl::InlinedVector<TensorLetters, 2> operands;
  TensorLetters result;
  Dims sizes;

  int64_t bytes() const override { return static_cast<int64_t>(sizes.size() * sizeof(int64_t)); }

  // `local` with a dimension for each letter.
  absl::StatusOr<LetteredTensor> Lettered(Device& device, const Tensor& local,
                                          const TensorLetters& letters) const {
    Dims shape;
    for (const int letter : letters) shape.push_back(sizes[letter]);
    DT_ASSIGN_OR_RETURN(Tensor tensor, ReshapeLocal(device, local, shape));
    return LetteredTensor{std::move(tensor), letters};
  }
};

absl::StatusOr<std::shared_ptr<const OpState>> EinsumPrepare(const OpStateRequest& request) {
  auto state = std::make_shared<EinsumState>();
  const OpRule& rule = request.rule.rule();
  const DeviceMesh& mesh = request.operands[0]->mesh();
  for (const RuleTerm& term : rule.operands()) state->operands.push_back(LettersOf(term));
  state->result = LettersOf(rule.results()[0]);
  for (size_t l = 0; l < rule.letters().size(); ++l) {
    DT_ASSIGN_OR_RETURN(const Layout letter, Layout::Create(mesh, {request.assignment.letters[l]}));
    const int64_t size = request.rule.letter_size(static_cast<int>(l));
    state->sizes.push_back(letter.LocalShape({size}, request.rank)[0]);
  }
  return state;
}

const EinsumState& StateOf(const RankCall& call) {
  return static_cast<const EinsumState&>(*call.decision.state);
}

absl::Status Refuse(const EinsumAttrs& attrs, absl::string_view why) {
  return InvalidArgument({"Einsum: \"", attrs.rule, "\" ", why});
}

absl::Status CheckLetters(const EinsumAttrs& attrs, const OpRule& rule) {
  for (const RuleLetter& letter : rule.letters()) {
    if (letter == RuleLetter{.name = letter.name}) continue;
    return Refuse(attrs, absl::StrCat("marks '", letter.name,
                                      "'; give letters, '...' and dimensions '(a b)' of several"));
  }
  return absl::OkStatus();
}

// No values that are indices, and no letter twice.
absl::Status CheckTerm(const EinsumAttrs& attrs, const OpRule& rule, const RuleTerm& term) {
  if (term.indexes >= 0) return Refuse(attrs, "takes indices, with '@'; see Embedding");
  const TensorLetters letters = LettersOf(term);
  for (const int letter : letters) {
    if (absl::c_count(letters, letter) == 1) continue;
    return Refuse(attrs, absl::StrCat("has '", rule.letters()[letter].name,
                                      "' twice in one tensor: there is no operator for diagonals"));
  }
  return absl::OkStatus();
}

// No letter that no operand has.
absl::Status CheckResult(const EinsumAttrs& attrs, const OpRule& rule) {
  for (const int letter : LettersOf(rule.results()[0])) {
    const auto has = [&](const RuleTerm& term) {
      return absl::c_linear_search(LettersOf(term), letter);
    };
    if (absl::c_any_of(rule.operands(), has)) continue;
    return Refuse(attrs, absl::StrCat("has '", rule.letters()[letter].name,
                                      "' in its result alone; Expand adds dimensions"));
  }
  return absl::OkStatus();
}

absl::Status CheckDims(const EinsumAttrs& attrs, const OpRule& rule,
                       absl::Span<const Dims> shapes) {
  // The mistake of those who know other libraries' notation: "ij,jk->ik".
  const auto is_long = [](const RuleLetter& letter) { return letter.name.size() > 1; };
  const absl::string_view remedy =
      absl::c_any_of(rule.letters(), is_long)
          ? "; letters are words, with spaces between them: \"i j, j k -> i k\""
          : "; give a letter for each";
  for (size_t i = 0; i < shapes.size(); ++i) {
    const RuleTerm& term = rule.operands()[i];
    const size_t dims = term.dims.size();
    if (shapes[i].size() == dims || (term.ellipsis && shapes[i].size() > dims)) continue;
    return Refuse(attrs, absl::StrCat("has ", dims, dims == 1 ? " dimension" : " dimensions",
                                      term.ellipsis ? " or more" : "", " for operand ", i,
                                      ", which is ", DimsToString(shapes[i]), remedy));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const EinsumAttrs& attrs) {
  for (const auto& [letter, size] : attrs.sizes) {
    const auto has_it = [&name = letter](const EinsumAttrs::Size& s) { return s.letter == name; };
    if (absl::c_count_if(attrs.sizes, has_it) == 1) continue;
    return Refuse(attrs, absl::StrCat("is given two sizes of '", letter, "'; give one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RuleText> EinsumRule(absl::Span<const Dims> shapes, AttrsView view) {
  const auto& attrs = view.as<EinsumAttrs>();
  const absl::StatusOr<OpRule> rule = OpRule::Parse(attrs.rule);
  if (!rule.ok()) return InvalidArgument({"Einsum: ", rule.status().message()});
  if (rule->operands().size() != shapes.size() || rule->results().size() != 1) {
    return Refuse(attrs, absl::StrCat("has ", rule->operands().size(), " operands and ",
                                      rule->results().size(), " results; this call has ",
                                      shapes.size(), ", and one result"));
  }
  DT_RETURN_IF_ERROR(CheckSizes(attrs));
  DT_RETURN_IF_ERROR(CheckLetters(attrs, *rule));
  for (const RuleTerm& term : rule->operands()) {
    DT_RETURN_IF_ERROR(CheckTerm(attrs, *rule, term));
  }
  DT_RETURN_IF_ERROR(CheckTerm(attrs, *rule, rule->results()[0]));
  DT_RETURN_IF_ERROR(CheckDims(attrs, *rule, shapes));
  DT_RETURN_IF_ERROR(CheckResult(attrs, *rule));
  RuleText text{attrs.rule, {}};
  for (const auto& [letter, size] : attrs.sizes) text.sizes.emplace_back(letter, size);
  return text;
}

absl::Status EinsumForward(const OpCall& call) {
  Device& device = call.device();
  const EinsumState& state = StateOf(call);
  DT_ASSIGN_OR_RETURN(const LetteredTensor out,
                      state.Lettered(device, call.results[0], state.result));
  DT_ASSIGN_OR_RETURN(const LetteredTensor a,
                      state.Lettered(device, call.operands[0], state.operands[0]));
  if (call.operands.size() == 1) return Contract(device, a, out);
  DT_ASSIGN_OR_RETURN(const LetteredTensor b,
                      state.Lettered(device, call.operands[1], state.operands[1]));
  return Contract(device, a, b, out);
}

// The gradient of one operand is the contraction of the result's gradient with the other operand.
absl::Status EinsumBackward(const GradCall& call) {
  Device& device = call.device();
  const EinsumState& state = StateOf(call);
  DT_ASSIGN_OR_RETURN(const LetteredTensor dy,
                      state.Lettered(device, call.result_gradients[0], state.result));
  for (int i = 0; i < 2; ++i) {
    if (!call.wants(i)) continue;
    DT_ASSIGN_OR_RETURN(const LetteredTensor gradient,
                        state.Lettered(device, call.gradients[i], state.operands[i]));
    DT_ASSIGN_OR_RETURN(const LetteredTensor other,
                        state.Lettered(device, call.operands[1 - i], state.operands[1 - i]));
    DT_RETURN_IF_ERROR(Contract(device, dy, other, gradient));
  }
  return absl::OkStatus();
}

absl::Status EinsumOfOneBackward(const GradCall& call) {
  Device& device = call.device();
  const EinsumState& state = StateOf(call);
  DT_ASSIGN_OR_RETURN(const LetteredTensor dy,
                      state.Lettered(device, call.result_gradients[0], state.result));
  DT_ASSIGN_OR_RETURN(const LetteredTensor gradient,
                      state.Lettered(device, call.gradients[0], state.operands[0]));
  return Contract(device, dy, gradient);
}

const OpDef kEinsumOp = {
    .name = "Einsum",
    .describe = EinsumRule,
    .linearity = RuleLinearity::kMulti,
    .attrs = &kAttrsType<EinsumAttrs>,
    .types = TypeSet::Floats(),
    .every_device = {EinsumForward, EinsumBackward},
    .saved_operands = 0b11,
    .separate_gradients = {OpDef::kAlone | 0b10, OpDef::kAlone | 0b01},
    .prepare = EinsumPrepare,
};

// Of one operand, which backward does not need.
const OpDef kEinsumOfOneOp = {
    .name = "Einsum",
    .describe = EinsumRule,
    .linearity = RuleLinearity::kJoint,
    .attrs = &kAttrsType<EinsumAttrs>,
    .types = TypeSet::Floats(),
    .every_device = {EinsumForward, EinsumOfOneBackward},
    .prepare = EinsumPrepare,
};

EinsumAttrs EinsumAttrsOf(absl::string_view rule, const LetterSizes& sizes) {
  EinsumAttrs attrs{std::string(rule), {}};
  for (const auto& [letter, size] : sizes) attrs.sizes.push_back({letter, size});
  return attrs;
}

}  // namespace

absl::Span<const OpDef* const> EinsumOps() {
  static constexpr const OpDef* kOps[] = {&kEinsumOp, &kEinsumOfOneOp};
  return kOps;
}

}  // namespace internal

TensorOr Einsum(absl::string_view rule, const TensorOr& x, const LetterSizes& sizes) {
  return Dispatch(internal::kEinsumOfOneOp, {&x}, internal::EinsumAttrsOf(rule, sizes));
}

TensorOr Einsum(absl::string_view rule, const TensorOr& a, const TensorOr& b,
                const LetterSizes& sizes) {
  return Dispatch(internal::kEinsumOp, {&a, &b}, internal::EinsumAttrsOf(rule, sizes));
}

}  // namespace dtensor
