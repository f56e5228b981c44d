// Law 3: every operator's rule, in every legal assignment of placements on small shapes, gives the
// dense result; so do its gradients. The engine's choice gives it too, for any placements of the
// operands. check_op.h describes how this is checked.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/all_ops.h"
#include "dtensor/testing/check_op.h"
#include "dtensor/testing/op_cases.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

const std::vector<std::string>& LargerMeshes() {
  static const auto* const meshes =
      new std::vector<std::string>{"a=5", "a=3,b=2", "a=1,b=2", "a=2,b=2,c=2"};
  return *meshes;
}

class OpRulesTest : public testing::TestWithParam<int> {
 protected:
  const OpCase c = AllOpCases()[GetParam()];
  const uint64_t number = GetParam();
};

TEST_P(OpRulesTest, EveryLegalAssignmentGivesTheDenseResult) { DT_EXPECT_OK(CheckAssignments(c)); }

TEST_P(OpRulesTest, SlowEveryLegalAssignmentOnLargerMeshes) {
  DT_EXPECT_OK(CheckAssignments(c, {.meshes = LargerMeshes(), .dtypes = {DType::kF64}}));
}

TEST_P(OpRulesTest, WhateverTheEngineChoosesGivesTheDenseResult) {
  DT_EXPECT_OK(CheckDrawnLayouts(c, {.seed = 100 + number}));
}

TEST_P(OpRulesTest, SlowWhateverTheEngineChoosesOnLargerMeshes) {
  DT_EXPECT_OK(CheckDrawnLayouts(c, {.draws = 250, .seed = 300 + number}));
  DT_EXPECT_OK(
      CheckDrawnLayouts(c, {.meshes = LargerMeshes(), .draws = 100, .seed = 400 + number}));
}

TEST_P(OpRulesTest, NothingReliesOnReadiness) {
  DT_EXPECT_OK(
      CheckDrawnLayouts(c, {.draws = 3, .seed = 200 + number, .device = Device::Kind::kDeferred}));
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
