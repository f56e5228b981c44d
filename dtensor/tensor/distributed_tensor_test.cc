// Making tensors and reading them. What redistribution does to them: redistribution tests.
#include "dtensor/tensor/distributed_tensor.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
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

TEST(DistributedTensor, ItemIsTheOnlyElementOfAnyType) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    for (const DType type : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32,
                             DType::kI64, DType::kBool}) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor x, Full(context, mesh, {Shard(0)}, {1}, type, 1));
      EXPECT_THAT(Item(x), IsOkAndHolds(1)) << ToString(type);
    }
    const std::vector<int64_t> large = {-(int64_t{1} << 53)};
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Distribute<int64_t>(context, mesh, {Replicate()}, {}, large));
    EXPECT_THAT(Item(x), IsOkAndHolds(-0x1p53));
    for (const int64_t size : {0, 2}) {
      DT_ASSIGN_OR_RETURN(const DistributedTensor other,
                          Full(context, mesh, {Shard(0)}, {size}, DType::kI64, 1));
      EXPECT_THAT(Item(other), StatusIs(kInvalidArgument, HasSubstr("needs one element")));
    }
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

TEST(DistributedTensor, OnlyFloatingLeavesMayWantGradients) {
  EXPECT_THAT(DistributedTensor().set_requires_grad(true),
              StatusIs(kInvalidArgument, HasSubstr("undefined")));
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    for (const DType type : {DType::kI32, DType::kI64, DType::kBool}) {
      DT_ASSIGN_OR_RETURN(DistributedTensor x, Full(context, mesh, {Shard(0)}, {4}, type, 1));
      EXPECT_THAT(x.set_requires_grad(true), StatusIs(kInvalidArgument, HasSubstr("Cast")));
      EXPECT_FALSE(x.requires_grad());
      DT_EXPECT_OK(x.set_requires_grad(false));
    }
    DT_ASSIGN_OR_RETURN(DistributedTensor x, Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1));
    DT_EXPECT_OK(x.set_requires_grad(true));
    EXPECT_TRUE(x.requires_grad());
    DT_ASSIGN_OR_RETURN(DistributedTensor y, x.Redistribute({Replicate()}));
    EXPECT_THAT(y.set_requires_grad(true),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Detach()")));
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

TEST(DistributedTensor, IsMadeLikeAnother) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {Shard(0)}, {3}, DType::kI32, 1));
    DT_ASSIGN_OR_RETURN(const auto same, FullLike(x, 7));
    EXPECT_EQ(same.ToString(), x.ToString());
    EXPECT_THAT(*ToGlobal<int32_t>(same), Each(7));
    DT_ASSIGN_OR_RETURN(const auto scalar, FullLike(x, 7, {}));
    EXPECT_EQ(scalar.ToString(), "[] i32 on [\"tp\"=2] as scalar");
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      DT_ASSIGN_OR_RETURN(const auto terms,
                          FromLocal(context, mesh, {Partial(op)}, {3},
                                    *FromHost<float>(context.device(), {{1, 2, 3}}, {3})));
      DT_ASSIGN_OR_RETURN(const auto like, FullLike(terms, 2));
      EXPECT_TRUE(like.layout().is_replicated());
      EXPECT_THAT(*ToGlobal<float>(like), Each(2));
    }
    EXPECT_THAT(FullLike(DistributedTensor(), 1),
                StatusIs(kInvalidArgument, HasSubstr("undefined")));
    EXPECT_THAT(FullLike(DistributedTensor(), 1, {}),
                StatusIs(kInvalidArgument, HasSubstr("undefined")));
    return absl::OkStatus();
  }));
}

TEST(DistributedTensor, IsMadeOfATensorOnItsOwnDevice) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    for (const std::unique_ptr<Device>& other : {MakeMetaDevice(), MakeCpuDevice()}) {
      DT_ASSIGN_OR_RETURN(const Tensor local, Tensor::Empty(*other, DType::kF32, {2}));
      EXPECT_THAT(FromLocal(context, mesh, {Shard(0)}, {4}, local),
                  StatusIs(kInvalidArgument, HasSubstr("context.device()")));
    }
    return absl::OkStatus();
  }));
}

TEST(DistributedTensor, HasAtMostSoManyDimensions) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    Dims shape(Layout::kMaxDims, 1);
    shape.back() = 2;
    DT_ASSIGN_OR_RETURN(const DistributedTensor most,
                        Distribute<float>(context, mesh, {Shard(-1)}, shape, {{1, 2}}));
    DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(most));
    EXPECT_THAT(all, ElementsAre(1, 2));
    shape.push_back(1);
    EXPECT_THAT(Full(context, mesh, {Replicate()}, shape, DType::kF32, 1),
                StatusIs(kInvalidArgument, HasSubstr("33 dimensions; at most 32")));
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

// Two stages of a pipeline, in a world of four.
TEST(DistributedTensor, LiesOnTheFirstRanksOfALargerWorld) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh tp, DeviceMesh::Parse("tp=2"));
    EXPECT_THAT(Full(context, tp, {Shard(0)}, {2}, DType::kF32, 1),
                StatusIs(kInvalidArgument, HasSubstr("OnRanks")));
    DT_ASSIGN_OR_RETURN(const DeviceMesh first, tp.OnRanks({0, 1}));
    DT_ASSIGN_OR_RETURN(const DeviceMesh second, DeviceMesh::Parse("tp=2@2..3"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Distribute<float>(context, first, {Shard(0)}, {3}, {{1, 2, 3}}));
    EXPECT_EQ(x.spec().on_mesh, context.rank() < 2);
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, x.Redistribute(Layout::Replicated(second, 1)));
    if (context.rank() < 2) {
      DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(x));
      EXPECT_THAT(all, ElementsAre(1, 2, 3));
    } else {
      DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(y));
      EXPECT_THAT(all, ElementsAre(1, 2, 3));
    }
    return absl::OkStatus();
  }));
}

// 5 * 0x3333333333333334 is 4, modulo 2^64.
TEST(DistributedTensor, RefusesSizesThatOverflowOnEveryRank) {
  constexpr int64_t kWraps = 0x3333333333333334, kHuge = std::numeric_limits<int64_t>::max();
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
    const Layout whole = Layout::Replicated(mesh, 2);
    const auto refused = [](const char* words) {
      return StatusIs(kInvalidArgument, HasSubstr(words));
    };
    const std::vector<float> four = {1, 2, 3, 4};
    EXPECT_THAT(Distribute<float>(context, whole, {5, kWraps}, four), refused("Distribute"));
    EXPECT_THAT(Distribute<float>(context, mesh, {Shard(0)}, {5, kWraps}, four), refused("2^56"));
    EXPECT_THAT(Full(context, whole, {-3, 4}, DType::kF32, 1), refused("[-3, 4]"));
    EXPECT_THAT(Full(context, whole, {-2, -2}, DType::kF32, 1), refused("negative"));
    EXPECT_THAT(RandomNormal(context, whole, {0, kHuge}, {}), refused("2^56"));
    DT_ASSIGN_OR_RETURN(const Tensor local, FromHost<float>(context.device(), four, {4}));
    EXPECT_THAT(FromLocal(context, whole, {5, kWraps}, local), refused("2^56"));
    for (const Placement& placement :
         {Shard(0), Shard(0, ShardOrder::Zigzag()), Shard(0, ShardOrder::Block(3)),
          Shard(0, ShardOrder::Unit(kHuge)), Shard(0, ShardOrder::Cyclic(kHuge))}) {
      EXPECT_THAT(Layout::FromPlacements(mesh, {placement}, {kHuge}), refused("2^56"));
      EXPECT_THAT(Layout::FromPlacements(mesh, {placement}, {kHuge - 1}), refused("2^56"));
    }
    // The Context is as good as before.
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Distribute<float>(context, mesh, {Shard(0)}, {4}, four));
    DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(x));
    EXPECT_THAT(all, ElementsAre(1, 2, 3, 4));
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
  EXPECT_DEATH(undefined.ClearGrad(), "defined\\(\\)");
  EXPECT_DEATH(undefined.pinned(), "defined\\(\\)");
  EXPECT_DEATH(undefined.Detach(), "defined\\(\\)");
}

}  // namespace
}  // namespace dtensor
