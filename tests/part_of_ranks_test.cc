// Law 3 where the mesh has part of the ranks: every operator, and its backward, gives the result of
// one rank there. Ranks that are not on the mesh make the same calls. They learn the same layouts,
// and neither compute nor communicate.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/testing/all_layouts.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr uint64_t kSeed = 7;

struct Where {
  std::string mesh;
  int world;
};

// Any layout; bools are never Partial.
Layout AnyLayout(const DeviceMesh& mesh, const OpCase::Operand& operand, std::mt19937& random) {
  std::vector<Placement> all =
      AllPlacements(static_cast<int>(operand.shape.size()), ReduceOp::kSum, AllOrders());
  if (operand.flags) std::erase_if(all, [](const Placement& p) { return p.is_partial(); });
  return DrawLayout(mesh, operand.shape, [&] { return all[random() % all.size()]; });
}

void ExpectNear(const OpCase& c, const std::vector<std::vector<double>>& got,
                const std::vector<std::vector<double>>& dense, const std::string& what) {
  ASSERT_EQ(got.size(), dense.size()) << what;
  for (size_t t = 0; t < got.size(); ++t) {
    double largest = 1;
    for (const double value : dense[t]) largest = std::max(largest, std::abs(value));
    const double tolerance = c.exact ? 0 : 1e-12 * largest;
    EXPECT_THAT(got[t], testing::Pointwise(testing::DoubleNear(tolerance), dense[t]))
        << what << ", tensor " << t;
  }
}

// Runs the case with operands in these layouts on all ranks of the world.
void Check(const OpCase& c, const OpOutcome& dense, int world, const std::vector<Layout>& layouts,
           Gradients gradients) {
  const DeviceMesh& mesh = layouts[0].mesh();
  std::string what = absl::StrCat(c.ToString(), " on ", mesh.ToString());
  for (const Layout& layout : layouts) absl::StrAppend(&what, ", ", layout.ToString());
  std::vector<OpOutcome> got(world);
  DT_ASSERT_OK(RunRanks(world, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto operands, MakeOperands(context, c, DType::kF64, layouts, kSeed,
                                                          gradients != Gradients::kNone));
    DT_ASSIGN_OR_RETURN(got[context.rank()], Evaluate(context, c, operands, kSeed, gradients));
    if (!mesh.Contains(context.rank())) {
      EXPECT_TRUE(context.communicator().traffic().empty()) << what;
    }
    return absl::OkStatus();
  })) << what;
  const OpOutcome& first = got[mesh.RankOf(0)];
  for (int rank = 0; rank < world; ++rank) {
    const std::string here = absl::StrCat(what, ", rank ", rank);
    EXPECT_EQ(got[rank].result_layouts, first.result_layouts) << here;
    EXPECT_EQ(got[rank].gradient_layouts, first.gradient_layouts) << here;
    if (!mesh.Contains(rank)) continue;
    ExpectNear(c, got[rank].results, dense.results, here);
    ExpectNear(c, got[rank].gradients, dense.gradients, here);
  }
}

class PartOfRanksTest : public testing::TestWithParam<int> {};

TEST_P(PartOfRanksTest, OthersLearnTheSameLayouts) {
  const OpCase c = AllOpCases()[GetParam()];
  DT_ASSERT_OK_AND_ASSIGN(const OpOutcome dense, EvaluateDense(c, DType::kF64, kSeed));
  std::mt19937 random(GetParam());
  for (const auto& [text, world] : {Where{"a=2@2,0", 3}, Where{"a=2,b=2@3,0,4,1", 5}}) {
    DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
    for (int draw = 0; draw < 6; ++draw) {
      std::vector<Layout> layouts;
      for (const auto& operand : c.operands) {
        const int ndim = static_cast<int>(operand.shape.size());
        layouts.push_back(draw == 0 ? Layout::Replicated(mesh, ndim)
                                    : AnyLayout(mesh, operand, random));
      }
      for (const Gradients gradients : {Gradients::kWhole, Gradients::kPartial}) {
        Check(c, dense, world, layouts, gradients);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, PartOfRanksTest,
                         testing::Range(0, static_cast<int>(AllOpCases().size())),
                         [](const testing::TestParamInfo<int>& info) {
                           return absl::StrCat(AllOpCases()[info.param].op->name, info.param);
                         });

}  // namespace
}  // namespace dtensor
