// Matrix products on several ranks: which operands stay where they are, and that a bias is added
// once.
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "dtensor/testing/two_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(BatchedMatMul, StaysWhereTheBatchIsSplit) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto a, Make(context, mesh, "[tp] [] []", {2, 1, 2}, {1, 2, 3, 4}));
    DT_ASSIGN_OR_RETURN(const auto b, Make(context, mesh, "[] []", {2, 2}, {1, 2, 3, 4}));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto c, MatMul(a, b));
    DT_RETURN_IF_ERROR(Backward(Sum(c, {0, 1, 2})));
    EXPECT_EQ(Text(c), "[tp] [] []");
    EXPECT_EQ(Text(b.grad()), "[] [] P(sum: tp)");
    EXPECT_THAT(GlobalValues(c), IsOkAndHolds(ElementsAre(7, 10, 15, 22)));
    EXPECT_THAT(GlobalValues(b.grad()), IsOkAndHolds(ElementsAre(4, 4, 6, 6)));
    EXPECT_THAT(GlobalValues(a.grad()), IsOkAndHolds(ElementsAre(3, 7, 3, 7)));
    return absl::OkStatus();
  });
}

struct BiasCase {
  const char *x, *weight, *bias, *result;  // layouts
  const char* bias_gradient;
};

// x = [1, 2], weight = [[1, 1], [2, 3]], bias = [10, 20]: [13, 28].
TEST(LinearWithBias, AddsItOnce) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const BiasCase& c : {
             BiasCase{"[] []", "[] []", "[]", "[] []", "[]"},
             BiasCase{"[] []", "[tp] []", "[tp]", "[] [tp]", "[tp]"},
             BiasCase{"[] []", "[tp] []", "[]", "[] [tp]", "[tp]"},
             BiasCase{"[] [tp]", "[] [tp]", "[]", "[] []", "[]"},
             BiasCase{"[] [tp]", "[] []", "[tp]", "[] [tp]", "[tp]"},
             BiasCase{"[] [] P(sum: tp)", "[] []", "[]", "[] []", "[]"},
             BiasCase{"[] []", "[] []", "[] P(sum: tp)", "[] []", "[]"},
         }) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, c.x, {1, 2}, {1, 2}));
      DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, c.weight, {2, 2}, {1, 1, 2, 3}));
      DT_ASSIGN_OR_RETURN(const auto bias, Make(context, mesh, c.bias, {2}, {10, 20}));
      DT_ASSIGN_OR_RETURN(const auto y, Linear(x, w, bias));
      EXPECT_EQ(Text(y), c.result) << c.x << ", " << c.weight;
      EXPECT_THAT(GlobalValues(y), IsOkAndHolds(ElementsAre(13, 28))) << c.x << ", " << c.weight;
      DT_RETURN_IF_ERROR(Backward(Sum(y, {0, 1})));
      EXPECT_EQ(Text(bias.grad()), c.bias_gradient) << c.x << ", " << c.weight;
      EXPECT_THAT(GlobalValues(bias.grad()), IsOkAndHolds(Each(1)));
      EXPECT_THAT(GlobalValues(x.grad()), IsOkAndHolds(ElementsAre(3, 4)));
      EXPECT_THAT(GlobalValues(w.grad()), IsOkAndHolds(ElementsAre(1, 2, 1, 2)));
    }
    return absl::OkStatus();
  });
}

// 256 and 1 and 1 make 258 in bf16 only if they are added before they are rounded.
TEST(LinearWithBias, RoundsOnce) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const auto make = [&](Dims shape, std::vector<double> values) {
      const Layout layout = Layout::Replicated(DeviceMesh(), static_cast<int>(shape.size()));
      return Place(context, layout, shape, DType::kBF16, values, 0);
    };
    const TensorOr y = Linear(make({1, 2}, {256, 1}), make({1, 2}, {1, 1}), make({1}, {1}));
    DT_RETURN_IF_ERROR(y.status());
    EXPECT_THAT(GlobalValues(*y), IsOkAndHolds(ElementsAre(258)));
    return absl::OkStatus();
  }));
}

TEST(LinearWithBias, RefusesAnotherBiasWhereverItLies) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] []", "[] [tp]"}) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, layout, {1, 2}, {1, 2}));
      DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, layout, {2, 2}, {1, 1, 2, 3}));
      DT_ASSIGN_OR_RETURN(const auto bias, Make(context, mesh, "[]", {1}, {1}));
      EXPECT_THAT(Linear(x, w, bias), StatusIs(absl::StatusCode::kInvalidArgument,
                                               testing::HasSubstr("Reshape it to [2]")));
      EXPECT_THAT(Linear(x, w, DistributedTensor()),
                  StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("undefined")));
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
