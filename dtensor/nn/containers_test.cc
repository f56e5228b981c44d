#include "dtensor/nn/containers.h"

#include <memory>
#include <utility>
#include <vector>

#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<LinearLayer> Ones(int64_t in, int64_t out) {
  return std::make_unique<LinearLayer>(Parameter::New({out, in}, ParameterInit::Constant(1)));
}

TEST(Sequential, CallsItsModulesInTurn) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const DeviceMesh mesh;
    Sequential model;
    const LinearLayer* const first = model.Append(Ones(3, 2));
    EXPECT_EQ(first, &model[0]);
    model.Append(Ones(2, 2));
    DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
    std::vector<std::string> paths;
    model.VisitParameters([&](const std::string& path, Parameter&) { paths.push_back(path); });
    EXPECT_THAT(paths, ElementsAre("0.weight", "1.weight"));
    DT_ASSIGN_OR_RETURN(const auto y, model(Full(context, mesh, {}, {1, 3}, DType::kF32, 2)));
    EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(ElementsAre(12, 12)));
    return absl::OkStatus();
  }));
}

TEST(Sequential, WithoutModulesReturnsItsOperand) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    Sequential model;
    DT_ASSIGN_OR_RETURN(const auto y, model(Full(context, DeviceMesh(), {}, {2}, DType::kF32, 3)));
    EXPECT_THAT(ToGlobal<float>(y), IsOkAndHolds(ElementsAre(3, 3)));
    return absl::OkStatus();
  }));
}

TEST(ModuleList, IsNotCalled) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    ModuleList list;
    list.Append(Ones(1, 1));
    EXPECT_EQ(list.size(), 1);
    EXPECT_THAT(list(Full(context, DeviceMesh(), {}, {2}, DType::kF32, 3)),
                Refuses(HasSubstr("use Sequential")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
