// Law 8: Parse(ToString(x)) == x for meshes, placements, layouts, rules and plans. Random ones of
// each kind, and what Parse refuses, are tested beside their code; here are those that the library
// itself makes, and that printing says all there is to say.
#include <string>
#include <vector>

#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/transformer_plan.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr const char* kMeshes[] = {"", "a=1", "a=3", "a=2,b=3", "x=2,y=1,z=2", "k=2,r=2;t=k*r"};

TEST(TextForms, OfMeshes) {
  for (const char* text : kMeshes) {
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
    EXPECT_THAT(DeviceMesh::Parse(mesh.ToString()), IsOkAndHolds(mesh));
    for (const char* other : kMeshes)
      EXPECT_EQ(*DeviceMesh::Parse(other) == mesh, std::string(other) == text) << other << text;
  }
}

TEST(TextForms, OfPlacementsAndTheirLayouts) {
  for (const char* text : kMeshes) {
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {5}, {4, 3}}) {
      const std::vector<std::vector<ReduceOp>> ops = {
          {ReduceOp::kSum}, {ReduceOp::kMax}, SumAndAverage()};
      for (const std::vector<ReduceOp>& some : ops) {
        for (const Layout& layout : AllLayouts(mesh, shape, some, AllOrders())) {
          ASSERT_THAT(Layout::Parse(mesh, layout.ToString()), IsOkAndHolds(layout));
          const auto placements = layout.ToPlacements(shape);
          if (!placements.ok()) continue;
          ASSERT_THAT(ParsePlacements(ToString(*placements)), IsOkAndHolds(*placements));
        }
      }
    }
  }
}

// Different layouts print differently: the text is what a cache, a log or a test compares.
TEST(TextForms, OfLayoutsTellThemApart) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
  const std::vector<int64_t> shape = {8, 3};
  const std::vector<Layout> all = AllLayouts(mesh, shape, SumAndAverage(), AllOrders());
  ASSERT_GT(all.size(), 50u);
  for (const Layout& a : all) {
    for (const Layout& b : all) ASSERT_EQ(a == b, a.ToString() == b.ToString());
  }
}

std::vector<Dims> ShapesOf(const OpCase& c) {
  std::vector<Dims> shapes;
  for (const OpCase::Operand& operand : c.operands) shapes.push_back(operand.shape);
  return shapes;
}

// Every operator's rule, as written and with the shapes of its cases.
TEST(TextForms, OfEveryOperatorsRule) {
  for (const OpCase& c : AllOpCases()) {
    RuleText text;
    if (c.op->describe != nullptr) {
      DT_ASSERT_OK_AND_ASSIGN(text, c.op->describe(ShapesOf(c), c.attrs));
    } else {
      text.text = c.op->rule;
    }
    DT_ASSERT_OK_AND_ASSIGN(const OpRule rule, OpRule::Parse(text.text));
    EXPECT_THAT(OpRule::Parse(rule.ToString()), IsOkAndHolds(rule)) << c.ToString();
    DT_ASSERT_OK_AND_ASSIGN(const BoundRule bound,
                            BoundRule::Bind(c.op->name, rule, ShapesOf(c), text.sizes));
    EXPECT_THAT(OpRule::Parse(bound.rule().ToString()), IsOkAndHolds(bound.rule()))
        << c.ToString() << ": " << bound.rule().ToString();
  }
}

TEST(TextForms, OfTheTransformersPlans) {
  std::vector<ParallelPlan> plans;
  for (const std::string axis : {"tp", "t"}) {
    for (const bool sequence_parallel : {false, true}) {
      plans.push_back(TensorParallelPlan(axis, sequence_parallel));
      plans.push_back(plans.back());
      plans.back().Add({"", DataParallel("dp")});
      plans.push_back(plans.back());
      plans.back().Add({"model.layers.*", FullyShard("dp")});
    }
  }
  for (const ParallelPlan& plan : plans) {
    EXPECT_THAT(ParallelPlan::Parse(plan.ToString()), IsOkAndHolds(plan));
    for (const ParallelPlan& other : plans) EXPECT_EQ(plan == other, &plan == &other);
  }
}

}  // namespace
}  // namespace dtensor
