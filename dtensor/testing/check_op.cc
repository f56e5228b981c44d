#include "dtensor/testing/check_op.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/op_assignments.h"

namespace dtensor {
namespace {

// What one rank found wrong, and what it saw. It goes on after a mismatch, or the others would wait
// for it.
struct Findings {
  std::string text;  // of the first few
  int count = 0, tried = 0;
  uint64_t seen = 0;

  void Add(const std::string& what) {
    if (++count <= 5) text += absl::StrCat("\n", what);
  }
  void See(const std::vector<double>& values) {
    Digest digest;
    digest.Add(static_cast<int64_t>(seen));
    digest.Add(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                 values.size() * sizeof(double)));
    seen = digest.value();
  }
};
auto ValueFields(Findings& f) { return std::tie(f.text, f.count, f.tried, f.seen); }

// Runs fn(context, its findings) on ranks that try at least so many times.
absl::Status Find(int ranks, const std::function<absl::Status(Context&, Findings&)>& fn,
                  int at_least, const RunOptions& options) {
  if (!SuiteHasRanks(ranks, options)) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const std::vector<Findings> all,
                      OnSuiteRanks(
                          ranks,
                          [&](Context& context) -> absl::StatusOr<Findings> {
                            Findings mine;
                            DT_RETURN_IF_ERROR(fn(context, mine));
                            return mine;
                          },
                          options));
  Findings found;
  for (const Findings& mine : all) {
    found.count += mine.count;
    found.tried += mine.tried;
    found.text += mine.text;
  }
  if (found.count > 0) return absl::InternalError(absl::StrCat(found.count, " wrong:", found.text));
  if (found.tried >= at_least) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("only ", found.tried, " were tried"));
}

// How far apart sums in another order may be.
double Tolerance(const OpCase& c, DType dtype, absl::Span<const double> dense, bool exact) {
  if (c.exact && exact) return 0;
  double largest = 1;
  for (double value : dense) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest * (dtype == DType::kF64 ? 1e-12 : 1e-5);
}

void Compare(absl::Span<const double> got, absl::Span<const double> dense, double tolerance,
             const std::string& what, Findings& findings) {
  bool equal = got.size() == dense.size();
  for (size_t i = 0; equal && i < got.size(); ++i) {
    equal = got[i] == dense[i] || std::abs(got[i] - dense[i]) <= tolerance;
  }
  if (equal) return;
  findings.Add(absl::StrCat(what, ":\n  got   ", absl::StrJoin(got, " "), "\n  dense ",
                            absl::StrJoin(dense, " ")));
}

std::string LayoutsText(absl::Span<const Layout> layouts) {
  return absl::StrJoin(
      layouts, ", ", [](std::string* out, const Layout& l) { absl::StrAppend(out, l.ToString()); });
}

bool HasOp(absl::Span<const Layout> layouts, ReduceOp op) {
  return std::any_of(layouts.begin(), layouts.end(), [&](const Layout& layout) {
    return layout.is_partial() && layout.partial_op() == op;
  });
}

absl::StatusOr<BoundRule> RuleOf(const OpCase& c) {
  std::vector<Dims> shapes;
  for (const auto& operand : c.operands) shapes.push_back(operand.shape);
  RuleText text;
  if (c.op->describe != nullptr) {
    DT_ASSIGN_OR_RETURN(text, c.op->describe(shapes, c.attrs));
  } else if (c.op->rule != nullptr) {
    text.text = c.op->rule;
  }
  DT_ASSIGN_OR_RETURN(const OpRule rule, OpRule::Parse(text.text));
  return BoundRule::Bind(c.op->name, rule, shapes, text.sizes);
}

struct Setting {
  const OpCase& c;
  DType dtype;
  uint64_t seed;
  OpOutcome dense;
};

// Whole numbers are not averaged, and bools are never Partial.
bool Testable(const OpCase& c, absl::Span<const Layout> operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (c.operands[i].flags && operands[i].is_partial()) return false;
    if (c.operands[i].ids > 0 && HasOp(operands.subspan(i, 1), ReduceOp::kAvg)) return false;
  }
  return true;
}

// What is Partial by another op than sum and avg has no gradient.
bool HasGradients(absl::Span<const Layout> operands) {
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
    if (HasOp(operands, op)) return false;
  }
  return true;
}

// Compares what one rank got with the dense run. If `expected`, the layouts must be those.
void CheckOutcome(const Setting& s, const OpOutcome& got, const std::string& where, bool exact,
                  const RuleAssignment* expected, Findings& findings) {
  const auto expect = [&](const Layout& layout, const Layout& wanted, const std::string& what) {
    if (layout == wanted) return;
    findings.Add(absl::StrCat(what, " is in ", layout.ToString(), ", not ", wanted.ToString()));
  };
  for (size_t r = 0; r < got.results.size(); ++r) {
    const auto& dense = s.dense.results[r];
    const std::string what = absl::StrCat(where, ": result ", r);
    findings.See(got.results[r]);
    Compare(got.results[r], dense, Tolerance(s.c, s.dtype, dense, exact), what, findings);
    if (expected != nullptr) expect(got.result_layouts[r], expected->results[r], what);
  }
  for (size_t i = 0; i < got.gradients.size(); ++i) {
    const auto& dense = s.dense.gradients[i];
    const std::string what = absl::StrCat(where, ": gradient ", i);
    findings.See(got.gradients[i]);
    Compare(got.gradients[i], dense, Tolerance(s.c, s.dtype, dense, exact), what, findings);
    if (expected == nullptr || dense.empty()) continue;
    expect(got.gradient_layouts[i], expected->gradients[i], what);
  }
  ++findings.tried;
}

// Runs the case with its operands placed so: once as it is, once with gradients that arrive
// Partial.
absl::Status CheckOne(Context& context, const Setting& s, absl::Span<const Layout> layouts,
                      const RuleAssignment* expected, Findings& findings) {
  DT_ASSIGN_OR_RETURN(const auto sample,
                      MakeOperands(context, s.c, s.dtype, layouts, s.seed, true));
  DT_ASSIGN_OR_RETURN(const DecisionPtr decision, Decide(*s.c.op, sample, s.c.attrs));
  const std::string where =
      absl::StrCat("rank ", context.rank(), ", ", s.c.ToString(), " ", ToString(s.dtype), ", seed ",
                   s.seed, ", operands ", LayoutsText(layouts), " taken as ",
                   LayoutsText(decision->assignment.operands));
  if (expected != nullptr &&
      (decision->assignment.cost != 0 || decision->assignment.operands != expected->operands)) {
    findings.Add(absl::StrCat(where, ": moves"));
  }
  const bool gradients = HasGradients(layouts);
  const bool exact = !HasOp(layouts, ReduceOp::kAvg);  // a third is not exact
  for (Gradients kind : {Gradients::kWhole, Gradients::kPartial}) {
    DT_ASSIGN_OR_RETURN(const auto operands,
                        MakeOperands(context, s.c, s.dtype, layouts, s.seed, gradients));
    const bool whole = kind == Gradients::kWhole;
    // One of both by BackwardForInputs, in turns.
    const bool in_two_parts = whole == (findings.tried / 2 % 2 == 0);
    DT_ASSIGN_OR_RETURN(const OpOutcome got,
                        Evaluate(context, s.c, operands, s.seed,
                                 gradients ? kind : Gradients::kNone, in_two_parts));
    CheckOutcome(s, got, absl::StrCat(where, whole ? "" : ", Partial gradients"), exact,
                 whole ? expected : nullptr, findings);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> LossAt(Context& context, const OpCase& c,
                              const std::vector<std::vector<double>>& values, uint64_t seed) {
  std::vector<DistributedTensor> operands;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& operand = c.operands[i];
    DT_ASSIGN_OR_RETURN(
        DistributedTensor placed,
        Place(context, Layout::Replicated(DeviceMesh(), static_cast<int>(operand.shape.size())),
              operand.shape, operand.type(DType::kF64), values[i], 0));
    operands.push_back(std::move(placed));
  }
  DT_ASSIGN_OR_RETURN(const OpOutcome out, Evaluate(context, c, operands, seed, Gradients::kNone));
  double loss = 0;
  for (size_t r = 0; r < out.results.size(); ++r) {
    if (!(c.used_results >> r & 1)) continue;
    const auto weights = LossWeights(c, static_cast<int>(r), out.results[r].size(), seed);
    for (size_t e = 0; e < weights.size(); ++e) loss += weights[e] * out.results[r][e];
  }
  return loss;
}

Layout RandomLayout(const DeviceMesh& mesh, const OpCase::Operand& operand, std::mt19937& random) {
  const int ndim = static_cast<int>(operand.shape.size());
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax};
  const ReduceOp op = ops[operand.is_float() ? random() % 4 : 0];
  // Averages stand beside sums.
  const auto partial = [&] {
    return Partial(op == ReduceOp::kAvg && random() % 2 == 0 ? ReduceOp::kSum : op);
  };
  const ShardOrder orders[] = {ShardOrder::Contiguous(), ShardOrder::Contiguous(),
                               ShardOrder::Zigzag(),     ShardOrder::Block(1),
                               ShardOrder::Unit(2),      ShardOrder::Cyclic(2)};
  return DrawLayout(mesh, operand.shape, [&]() -> Placement {
    const int kind = static_cast<int>(random() % 4);
    if (kind >= 2 && ndim > 0)
      return Shard(static_cast<int>(random() % ndim), orders[random() % 6]);
    return kind == 1 && !operand.flags ? partial() : Replicate();
  });
}

absl::Status TryAssignments(const OpCase& c, const std::string& mesh_text, DType dtype,
                            const CheckOpOptions& options) {
  DT_ASSIGN_OR_RETURN(const BoundRule rule, RuleOf(c));
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  const std::vector<RuleAssignment> all = LegalAssignments(c.op->name, rule, c.op->linearity, mesh);
  DT_ASSIGN_OR_RETURN(OpOutcome dense, EvaluateDense(c, dtype, options.seed));
  const Setting setting{c, dtype, options.seed, std::move(dense)};
  const auto run = [&](Context& context, Findings& findings) -> absl::Status {
    for (const RuleAssignment& assignment : all) {
      if (!Testable(c, assignment.operands)) continue;
      DT_RETURN_IF_ERROR(CheckOne(context, setting, assignment.operands, &assignment, findings));
    }
    return absl::OkStatus();
  };
  return Find(mesh.size(), run, 1, {.device = options.device});
}

absl::Status TryDrawnLayouts(const OpCase& c, const std::string& mesh_text,
                             const CheckOpOptions& options) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  DT_ASSIGN_OR_RETURN(OpOutcome dense, EvaluateDense(c, DType::kF64, options.seed));
  const Setting setting{c, DType::kF64, options.seed, std::move(dense)};
  const auto run = [&](Context& context, Findings& findings) -> absl::Status {
    std::mt19937 random(static_cast<uint32_t>(options.seed));
    for (int i = 0; i < options.draws; ++i) {
      std::vector<Layout> layouts;
      for (const auto& operand : c.operands) {
        layouts.push_back(RandomLayout(mesh, operand, random));
      }
      DT_RETURN_IF_ERROR(CheckOne(context, setting, layouts, nullptr, findings));
    }
    return absl::OkStatus();
  };
  return Find(mesh.size(), run, 2 * options.draws,
              {.device = options.device, .seed = options.seed});
}

// The same status with the case and where it was tried before its text.
absl::Status In(const OpCase& c, const std::string& where, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(c.ToString(), where, ": ", status.message()));
}

// The gradient of operand i against central differences.
absl::Status CheckGradient(Context& context, const OpCase& c, const std::vector<double>& gradient,
                           std::vector<std::vector<double>>& values, size_t i, uint64_t seed) {
  constexpr double kStep = 1e-5, kTolerance = 1e-7;
  if (gradient.size() != values[i].size()) {
    return absl::InternalError(absl::StrCat("operand ", i, " has a gradient of ", gradient.size(),
                                            " elements, not ", values[i].size()));
  }
  for (size_t e = 0; e < gradient.size(); ++e) {
    const double before = values[i][e];
    values[i][e] = before + kStep;
    DT_ASSIGN_OR_RETURN(const double above, LossAt(context, c, values, seed));
    values[i][e] = before - kStep;
    DT_ASSIGN_OR_RETURN(const double below, LossAt(context, c, values, seed));
    values[i][e] = before;
    const double slope = (above - below) / (2 * kStep);
    if (std::abs(gradient[e] - slope) <= kTolerance * std::max(1.0, std::abs(slope))) continue;
    return absl::InternalError(absl::StrCat("the gradient of operand ", i, ", element ", e, ", is ",
                                            gradient[e], " where differences give ", slope));
  }
  return absl::OkStatus();
}

// The gradient of operand i, if no other is wanted.
absl::StatusOr<std::vector<double>> GradientAlone(Context& context, const OpCase& c, size_t i,
                                                  uint64_t seed, bool in_two_parts) {
  std::vector<Layout> layouts;
  for (const auto& operand : c.operands) {
    layouts.push_back(Layout::Replicated(DeviceMesh(), static_cast<int>(operand.shape.size())));
  }
  DT_ASSIGN_OR_RETURN(auto operands, MakeOperands(context, c, DType::kF64, layouts, seed, true));
  for (size_t j = 0; j < operands.size(); ++j) {
    if (j != i) DT_RETURN_IF_ERROR(operands[j].set_requires_grad(false));
  }
  DT_ASSIGN_OR_RETURN(const OpOutcome out,
                      Evaluate(context, c, operands, seed, Gradients::kWhole, in_two_parts));
  return out.gradients[i];
}

}  // namespace

absl::Status CheckSeparateGradients(const OpCase& c) {
  constexpr uint64_t kSeed = 7;
  const auto& separate = c.op->separate_gradients;
  const auto check = [&](Context& context) -> absl::Status {
    for (size_t i = 0; i < std::min(separate.size(), c.operands.size()); ++i) {
      if (separate[i] == 0 || !c.operands[i].is_float()) continue;
      DT_ASSIGN_OR_RETURN(const auto whole, GradientAlone(context, c, i, kSeed, false));
      DT_ASSIGN_OR_RETURN(const auto parts, GradientAlone(context, c, i, kSeed, true));
      if (whole == parts) continue;
      return absl::InternalError(
          absl::StrCat("the gradient of operand ", i, " is another if it is computed by itself"));
    }
    return absl::OkStatus();
  };
  return c.used_results == 0 ? absl::OkStatus() : In(c, "", RunRanks(1, check));
}

absl::Status CheckGradients(const OpCase& c) {
  constexpr uint64_t kSeed = 7;
  if (!c.op->differentiable() || c.used_results == 0) return absl::OkStatus();
  DT_ASSIGN_OR_RETURN(const OpOutcome out, EvaluateDense(c, DType::kF64, kSeed));
  return In(c, "", RunRanks(1, [&](Context& context) -> absl::Status {
              std::vector<std::vector<double>> values;
              for (size_t i = 0; i < c.operands.size(); ++i) {
                values.push_back(OperandValues(c, static_cast<int>(i), kSeed));
              }
              for (size_t i = 0; i < values.size(); ++i) {
                if (!c.operands[i].is_float()) {
                  if (!out.gradients[i].empty())
                    return absl::InternalError("what is no float has a gradient");
                  continue;
                }
                DT_RETURN_IF_ERROR(CheckGradient(context, c, out.gradients[i], values, i, kSeed));
              }
              return absl::OkStatus();
            }));
}

absl::Status CheckAssignments(const OpCase& c, const CheckOpOptions& options) {
  for (const std::string& mesh : options.meshes) {
    for (const DType dtype : options.dtypes) {
      const std::string where = absl::StrCat(" of ", ToString(dtype), " on ", mesh);
      DT_RETURN_IF_ERROR(In(c, where, TryAssignments(c, mesh, dtype, options)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDrawnLayouts(const OpCase& c, const CheckOpOptions& options) {
  for (const std::string& mesh : options.meshes) {
    DT_RETURN_IF_ERROR(In(c, absl::StrCat(" on ", mesh), TryDrawnLayouts(c, mesh, options)));
  }
  return absl::OkStatus();
}

absl::Status CheckOp(const OpCase& c, const CheckOpOptions& options) {
  DT_RETURN_IF_ERROR(CheckGradients(c));
  DT_RETURN_IF_ERROR(CheckSeparateGradients(c));
  DT_RETURN_IF_ERROR(CheckAssignments(c, options));
  DT_RETURN_IF_ERROR(CheckDrawnLayouts(c, options));
  CheckOpOptions late = options;
  late.device = Device::Kind::kDeferred;
  late.draws = std::min(options.draws, 3);
  return CheckDrawnLayouts(c, late);
}

}  // namespace dtensor
