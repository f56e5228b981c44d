// Making tensors and reading them. What redistribution does to them: redistribution tests.
#include "dtensor/distributed_tensor.h"

#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

TEST(DistributedTensor, HoldsBools) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(
        const DistributedTensor x,
        Distribute<bool>(context, mesh, {Shard(0)}, {5}, {{true, false, false, true, true}}));
    EXPECT_EQ(x.dtype(), DType::kBool);
    DT_ASSIGN_OR_RETURN(const std::vector<bool> all, ToGlobal<bool>(x));
    EXPECT_THAT(all, ElementsAre(true, false, false, true, true));
    EXPECT_THAT(ToGlobal<float>(x), StatusIs(kInvalidArgument, HasSubstr("bool")));
    return absl::OkStatus();
  }));
}

TEST(DistributedTensor, IsMadeFromPlacements) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor threes,
                        Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 3));
    EXPECT_EQ(threes.layout().ToString(), "[tp]");
    DT_ASSIGN_OR_RETURN(const DistributedTensor sum,
                        FromLocal(context, mesh, {Partial()}, {2}, threes.local()));
    DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(sum));
    EXPECT_THAT(all, Each(6));
    return absl::OkStatus();
  }));
}

TEST(DistributedTensor, OnlyFromLocalMakesPartialOnes) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    const auto refused = StatusIs(kInvalidArgument, HasSubstr("FromLocal"));
    EXPECT_THAT(Distribute<float>(context, mesh, {Partial()}, {2}, {{1, 2}}), refused);
    EXPECT_THAT(Full(context, mesh, {Partial()}, {2}, DType::kF32, 1), refused);
    EXPECT_THAT(RandomNormal(context, mesh, {Partial()}, {2}, {}), refused);
    EXPECT_THAT(FromLocal(context, mesh, {Partial()}, {}, Tensor()),
                StatusIs(kInvalidArgument, HasSubstr("undefined")));
    return absl::OkStatus();
  }));
}

TEST(DistributedTensor, LiesOnTheRanksOfItsWorld) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const DeviceMesh turned, mesh.OnRanks({1, 0}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Distribute<float>(context, turned, {Shard(0)}, {2}, {{1, 2}}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> mine, ToHost<float>(x.local()));
    EXPECT_THAT(mine, ElementsAre(context.rank() == 0 ? 2 : 1));
    DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(x));
    EXPECT_THAT(all, ElementsAre(1, 2));
    // On one rank of this world, and one that there is not.
    DT_ASSIGN_OR_RETURN(const DeviceMesh beside, mesh.OnRanks({1, 2}));
    EXPECT_THAT(Full(context, beside, {Shard(0)}, {2}, DType::kF32, 1),
                StatusIs(kInvalidArgument, HasSubstr("has rank 2 where the world has 2 ranks")));
    return absl::OkStatus();
  }));
}

TEST(DistributedTensorDeathTest, AccessorsRequireADefinedTensor) {
  DistributedTensor undefined;
  EXPECT_DEATH(undefined.shape(), "defined\\(\\)");
  EXPECT_DEATH(undefined.mesh(), "defined\\(\\)");
  EXPECT_DEATH(undefined.local(), "defined\\(\\)");
  EXPECT_DEATH(undefined.grad(), "defined\\(\\)");
  EXPECT_DEATH(undefined.requires_grad(), "defined\\(\\)");
  EXPECT_DEATH(undefined.set_requires_grad(true), "defined\\(\\)");
  EXPECT_DEATH(undefined.ClearGrad(), "defined\\(\\)");
  EXPECT_DEATH(undefined.pinned(), "defined\\(\\)");
  EXPECT_DEATH(undefined.Detach(), "defined\\(\\)");
}

}  // namespace
}  // namespace dtensor
