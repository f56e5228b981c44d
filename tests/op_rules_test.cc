// Law 3: every operator's rule, in every legal assignment of placements on small shapes, gives the
// dense result; so do its gradients. And whatever the operands' placements are, the engine's choice
// gives it too.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/dispatch.h"
#include "dtensor/tensor/op_helpers.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/all_ops.h"
#include "dtensor/testing/op_cases.h"
#include "dtensor/tests/op_assignments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr const char* kMeshes[] = {"a=2", "a=3", "a=2,b=2"};
constexpr const char* kLargerMeshes[] = {"a=5", "a=3,b=2", "a=1,b=2", "a=2,b=2,c=2"};

// What ranks found wrong. Ranks go on after a mismatch, or the others would wait for them.
class Findings {
 public:
  void Add(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++count_ <= 5) text_ += absl::StrCat("\n", what);
  }
  void Count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++tried_;
  }
  void Expect(int at_least) const {
    EXPECT_EQ(count_, 0) << text_;
    EXPECT_GE(tried_, at_least);
  }

 private:
  std::mutex mutex_;
  std::string text_;
  int count_ = 0, tried_ = 0;
};

// How far apart sums in another order may be.
double Tolerance(const OpCase& c, DType dtype, absl::Span<const double> dense, bool exact) {
  if (c.exact && exact) return 0;
  double largest = 1;
  for (double value : dense) largest = std::max(largest, std::abs(value));
  return largest * (dtype == DType::kF64 ? 1e-12 : 1e-5);
}

void Compare(absl::Span<const double> got, absl::Span<const double> dense, double tolerance,
             const std::string& what, Findings& findings) {
  bool equal = got.size() == dense.size();
  for (size_t i = 0; equal && i < got.size(); ++i) equal = std::abs(got[i] - dense[i]) <= tolerance;
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

BoundRule RuleOf(const OpCase& c) {
  std::vector<Dims> shapes;
  for (const auto& operand : c.operands) shapes.push_back(operand.shape);
  RuleText text;
  if (c.op->describe != nullptr)
    text = *c.op->describe(shapes, c.attrs);
  else
    text.text = c.op->rule;
  return *BoundRule::Bind(c.op->name, *OpRule::Parse(text.text), shapes, text.sizes);
}

struct Setting {
  const OpCase& c;
  DType dtype;
  uint64_t seed;
  OpOutcome dense;
  Findings& findings;
};

// Whole numbers are not averaged.
bool Testable(const OpCase& c, absl::Span<const Layout> operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
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
                  const RuleAssignment* expected) {
  const auto expect = [&](const Layout& layout, const Layout& wanted, const std::string& what) {
    if (layout == wanted) return;
    s.findings.Add(absl::StrCat(what, " is in ", layout.ToString(), ", not ", wanted.ToString()));
  };
  for (size_t r = 0; r < got.results.size(); ++r) {
    const auto& dense = s.dense.results[r];
    const std::string what = absl::StrCat(where, ": result ", r);
    Compare(got.results[r], dense, Tolerance(s.c, s.dtype, dense, exact), what, s.findings);
    if (expected != nullptr) expect(got.result_layouts[r], expected->results[r], what);
  }
  for (size_t i = 0; i < got.gradients.size(); ++i) {
    const auto& dense = s.dense.gradients[i];
    const std::string what = absl::StrCat(where, ": gradient ", i);
    Compare(got.gradients[i], dense, Tolerance(s.c, s.dtype, dense, exact), what, s.findings);
    if (expected == nullptr || dense.empty()) continue;
    expect(got.gradient_layouts[i], expected->gradients[i], what);
  }
  s.findings.Count();
}

// Runs the case with its operands placed so: once as it is, once with gradients that arrive
// Partial.
absl::Status CheckOne(Context& context, const Setting& s, absl::Span<const Layout> layouts,
                      const RuleAssignment* expected) {
  DT_ASSIGN_OR_RETURN(const auto sample,
                      MakeOperands(context, s.c, s.dtype, layouts, s.seed, true));
  DT_ASSIGN_OR_RETURN(const DecisionPtr decision, Decide(*s.c.op, sample, s.c.attrs));
  const std::string where =
      absl::StrCat("rank ", context.rank(), ", ", s.c.ToString(), " ", ToString(s.dtype), ", seed ",
                   s.seed, ", operands ", LayoutsText(layouts), " taken as ",
                   LayoutsText(decision->assignment.operands));
  if (expected != nullptr &&
      (decision->assignment.cost != 0 || decision->assignment.operands != expected->operands)) {
    s.findings.Add(absl::StrCat(where, ": moves"));
  }
  const bool gradients = HasGradients(layouts);
  const bool exact = !HasOp(layouts, ReduceOp::kAvg);  // a third is not exact
  for (Gradients kind : {Gradients::kWhole, Gradients::kPartial}) {
    DT_ASSIGN_OR_RETURN(const auto operands,
                        MakeOperands(context, s.c, s.dtype, layouts, s.seed, gradients));
    DT_ASSIGN_OR_RETURN(const OpOutcome got, Evaluate(context, s.c, operands, s.seed,
                                                      gradients ? kind : Gradients::kNone));
    const bool whole = kind == Gradients::kWhole;
    CheckOutcome(s, got, absl::StrCat(where, whole ? "" : ", Partial gradients"), exact,
                 whole ? expected : nullptr);
  }
  return absl::OkStatus();
}

class OpRulesTest : public testing::TestWithParam<int> {
 protected:
  const OpCase c = AllOpCases()[GetParam()];
};

void TryLegalAssignments(const OpCase& c, const char* mesh_text, DType dtype) {
  const BoundRule rule = RuleOf(c);
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  const std::vector<RuleAssignment> all = LegalAssignments(c.op->name, rule, c.op->linearity, mesh);
  ASSERT_FALSE(all.empty());
  Findings findings;
  DT_ASSERT_OK_AND_ASSIGN(OpOutcome dense, EvaluateDense(c, dtype, 1));
  const Setting setting{c, dtype, 1, std::move(dense), findings};
  DT_ASSERT_OK(RunRanks(mesh.size(),
                        [&](Context& context) -> absl::Status {
                          for (const RuleAssignment& assignment : all) {
                            if (!Testable(c, assignment.operands)) continue;
                            DT_RETURN_IF_ERROR(
                                CheckOne(context, setting, assignment.operands, &assignment));
                          }
                          return absl::OkStatus();
                        }))
      << c.ToString() << " on " << mesh_text;
  findings.Expect(1);
}

TEST_P(OpRulesTest, EveryLegalAssignmentGivesTheDenseResult) {
  for (const char* mesh : kMeshes) {
    for (DType dtype : {DType::kF64, DType::kF32}) TryLegalAssignments(c, mesh, dtype);
  }
}

TEST_P(OpRulesTest, SlowEveryLegalAssignmentOnLargerMeshes) {
  for (const char* mesh : kLargerMeshes) TryLegalAssignments(c, mesh, DType::kF64);
}

Layout RandomLayout(const DeviceMesh& mesh, const OpCase::Operand& operand, std::mt19937& random) {
  const int ndim = static_cast<int>(operand.shape.size());
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax};
  const ReduceOp op = ops[operand.ids > 0 ? 0 : random() % 4];
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
    return kind == 1 ? partial() : Replicate();
  });
}

void TryRandomPlacements(const OpCase& c, absl::Span<const char* const> meshes, int trials,
                         uint64_t seed, Device::Kind device) {
  for (const char* mesh_text : meshes) {
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
    Findings findings;
    DT_ASSERT_OK_AND_ASSIGN(OpOutcome dense, EvaluateDense(c, DType::kF64, seed));
    const Setting setting{c, DType::kF64, seed, std::move(dense), findings};
    DT_ASSERT_OK(RunRanks(mesh.size(),
                          [&](Context& context) -> absl::Status {
                            std::mt19937 random(static_cast<uint32_t>(seed));
                            for (int t = 0; t < trials; ++t) {
                              std::vector<Layout> layouts;
                              for (const auto& operand : c.operands)
                                layouts.push_back(RandomLayout(mesh, operand, random));
                              DT_RETURN_IF_ERROR(CheckOne(context, setting, layouts, nullptr));
                            }
                            return absl::OkStatus();
                          },
                          {.device = device, .seed = seed}))
        << c.ToString() << " on " << mesh_text;
    findings.Expect(2 * trials);
  }
}

TEST_P(OpRulesTest, WhateverTheEngineChoosesGivesTheDenseResult) {
  TryRandomPlacements(c, kMeshes, 30, 100 + GetParam(), Device::Kind::kCpu);
}

TEST_P(OpRulesTest, SlowWhateverTheEngineChoosesOnLargerMeshes) {
  TryRandomPlacements(c, kMeshes, 250, 300 + GetParam(), Device::Kind::kCpu);
  TryRandomPlacements(c, kLargerMeshes, 100, 400 + GetParam(), Device::Kind::kCpu);
}

TEST_P(OpRulesTest, NothingReliesOnReadiness) {
  TryRandomPlacements(c, kMeshes, 3, 200 + GetParam(), Device::Kind::kDeferred);
}

INSTANTIATE_TEST_SUITE_P(Ops, OpRulesTest, testing::Range(0, static_cast<int>(AllOpCases().size())),
                         [](const testing::TestParamInfo<int>& info) {
                           return absl::StrCat(AllOpCases()[info.param].op->name, info.param);
                         });

TEST(OpCasesTest, CoverEveryOperator) {
  const std::vector<OpCase> cases = AllOpCases();
  for (const OpDef* op : internal::AllOps()) {
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const OpCase& c) {
      return c.op == op;
    })) << op->name;
  }
}

}  // namespace
}  // namespace dtensor
