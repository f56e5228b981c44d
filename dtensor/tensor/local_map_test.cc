// LocalMap: functions of a rank's shards. Their gradients: local_map_gradients_test.cc.
#include "dtensor/tensor/local_map.h"

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/testing/leaf.h"
#include "dtensor/tensor/testing/local_functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(LocalMap, ComputesFromShardsWithoutCommunication) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=3");
    // 7 rows on 3 ranks, and 2 rows, of which the last rank has none.
    for (const int64_t rows : {7, 2}) {
      DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {rows, 4}, 1));
      const TrafficTable before = context.communicator().traffic();
      DT_ASSIGN_OR_RETURN(const Tensors y, LocalMap({x}, {Like(x)}, OneResult([](Shards shard) {
                                                      EXPECT_EQ(shard[0].mesh(),
                                                                *LocalMesh(shard[0].context()));
                                                      return Silu(Scale(shard[0], 2));
                                                    })));
      EXPECT_EQ(context.communicator().traffic(), before);
      EXPECT_EQ(y[0].ToString(), x.ToString());
      DT_ASSIGN_OR_RETURN(const auto expected, Silu(Scale(x.Detach(), 2)));
      EXPECT_EQ(*ToGlobal<double>(y[0]), *ToGlobal<double>(expected));
    }
    return absl::OkStatus();
  }));
}

TEST(LocalMap, KeepsValuesApart) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(auto x, Full(context, mesh, {Shard(0)}, {4}, DType::kF64, 1));
    DistributedTensor kept;
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({x}, {Like(x)}, OneResult([&](Shards shard) -> TensorOr {
                                   kept = shard[0];
                                   return shard[0];
                                 })));
    const auto write = [](const DistributedTensor& tensor, double value) -> absl::Status {
      DT_RETURN_IF_ERROR(BeforeWrite(tensor));
      for (int64_t i = 0; i < tensor.local().numel(); ++i) {
        tensor.local().data<double>()[i] = value;
      }
      return absl::OkStatus();
    };
    DT_RETURN_IF_ERROR(write(kept, 2));
    EXPECT_THAT(*ToGlobal<double>(x), Each(1));
    EXPECT_THAT(*ToGlobal<double>(y[0]), Each(1));
    DT_RETURN_IF_ERROR(write(x, 3));
    EXPECT_THAT(*ToGlobal<double>(y[0]), Each(1));
    DT_RETURN_IF_ERROR(write(y[0], 4));
    EXPECT_THAT(*ToGlobal<double>(x), Each(3));
    EXPECT_EQ(kept.local().data<double>()[0], 2);
    return absl::OkStatus();
  }));
}

// x remembers its redistribution, which both shards are.
TEST(LocalMap, KeepsShardsOfOneOperandApart) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Full(context, mesh, {Shard(0)}, {4}, DType::kF64, 1));
    const Layout whole = Layout::Replicated(mesh, 1);
    DT_ASSIGN_OR_RETURN(const Tensors y, LocalMap({x, x}, {{whole, x.shape()}},
                                                  OneResult([&](Shards shards) -> TensorOr {
                                                    DT_RETURN_IF_ERROR(BeforeWrite(shards[0]));
                                                    shards[0].local().data<double>()[0] = 7;
                                                    return shards[1];
                                                  }),
                                                  {.operand_layouts = {whole, whole}}));
    EXPECT_THAT(*ToGlobal<double>(y[0]), Each(1));
    DT_ASSIGN_OR_RETURN(const auto again, x.Redistribute(whole));
    EXPECT_THAT(*ToGlobal<double>(again), Each(1));
    return absl::OkStatus();
  }));
}

// A result that fn expanded has memory of its own on each rank, as a rank's only row has.
TEST(LocalMap, ResultsMayBeWrittenTo) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    DT_ASSIGN_OR_RETURN(auto x, Full(context, mesh, {Shard(0)}, {3, 2}, DType::kF64, 1));
    DT_ASSIGN_OR_RETURN(const Tensors y,
                        LocalMap({x}, {Like(x), Like(x)}, [](Shards shard) -> TensorsOr {
                          DT_ASSIGN_OR_RETURN(const auto row, Mean(shard[0], {0}));
                          DT_ASSIGN_OR_RETURN(const auto rows, Expand(row, shard[0].shape()));
                          return Tensors{rows, rows};
                        }));
    DT_RETURN_IF_ERROR(BeforeWrite(y[0]));
    y[0].local().data<double>()[0] = 5;
    EXPECT_THAT(*ToGlobal<double>(y[1]), Each(1));
    EXPECT_THAT(*ToGlobal<double>(y[0]), testing::ElementsAre(5, 1, 1, 1, 5, 1));
    return absl::OkStatus();
  }));
}

TEST(LocalMap, RefusesWhatDoesNotFit) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2");
    const DeviceMesh other = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {4}, 1));
    DT_ASSIGN_OR_RETURN(auto elsewhere, Leaf(context, other, {Shard(0)}, {4}, 1));
    const auto same = OneResult([](Shards shard) -> TensorOr { return shard[0]; });
    const auto refused = [](const TensorsOr& made, absl::string_view text) {
      EXPECT_THAT(made, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    };
    refused(LocalMap({}, {Like(x)}, same), "got 0 operands; give 1 to 32");
    refused(LocalMap({DistributedTensor()}, {Like(x)}, same), "operand 0 is undefined");
    refused(LocalMap({x, elsewhere}, {Like(x)}, same), "is on another mesh than operand 0");
    refused(LocalMap({x}, {}, same), "got 0 results; give 1 to 32");
    refused(LocalMap({x}, {Like(elsewhere)}, same), "result 0 is on [\"tp\"=2], the operands on");
    refused(LocalMap({x}, {{x.layout(), {4, 4}}}, same), "dimension");
    refused(LocalMap({x}, {Like(x)}, same, {.operand_layouts = {x.layout(), x.layout()}}),
            "got 1 operands and 2 operand_layouts");
    refused(LocalMap({x}, {Like(x)}, same, {.operand_layouts = {elsewhere.layout()}}),
            "does not fit its operand_layouts");
    const Layout average = *Layout::FromPlacements(mesh, {Partial(ReduceOp::kAvg)}, {{2}});
    refused(LocalMap({x}, {{average, {2}}}, same), "Partial(avg) over dp; make it Partial(sum)");
    DT_EXPECT_OK(LocalMap({x.Detach()}, {{average, {2}}}, same).status());

    // What fn returns.
    refused(LocalMap({x}, {Like(x), Like(x)}, same), "returned 1 tensors, and there are 2 results");
    refused(
        LocalMap({x}, {Like(x)}, OneResult([](Shards) -> TensorOr { return DistributedTensor(); })),
        "the function's result 0 is undefined");
    refused(LocalMap({x}, {Like(x)}, OneResult([&](Shards) -> TensorOr { return x; })),
            "is not on the shards' mesh");
    refused(LocalMap({x}, {{x.layout(), {6}}}, same), "LocalMapResult::shape is the global shape");
    EXPECT_THAT(LocalMap({x}, {Like(x)},
                         OneResult([](Shards) -> TensorOr { return absl::AbortedError("mine"); })),
                StatusIs(absl::StatusCode::kAborted, "mine"));

    // The world goes on.
    EXPECT_THAT(*ToGlobal<double>(x), testing::SizeIs(4));
    return absl::OkStatus();
  }));
}

// Rank 1 learns the type and gets no elements.
TEST(LocalMap, RunsWithoutElementsOnOtherRanks) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("dp=2")->OnRanks({2, 0});
    DT_ASSIGN_OR_RETURN(auto x, Leaf(context, mesh, {Shard(0)}, {5}, 1));
    DT_ASSIGN_OR_RETURN(const DeviceMesh local, LocalMesh(context, mesh));
    DT_ASSIGN_OR_RETURN(auto two, Full(context, local, {Replicate()}, {}, DType::kF64, 2));
    DT_RETURN_IF_ERROR(two.set_requires_grad(true));
    const auto twice = OneResult([&](Shards shards) {
      EXPECT_EQ(shards[0].spec().local_numel, shards[0].local().numel());
      return Mul(shards[0], two);
    });
    DT_ASSIGN_OR_RETURN(const auto y, LocalMap({x}, {Like(x)}, twice));
    EXPECT_EQ(&y[0].spec(), &x.spec());
    EXPECT_EQ(y[0].local().numel() > 0, context.rank() != 1);
    DT_RETURN_IF_ERROR(Backward(Sum(y[0], {0})));
    EXPECT_EQ(x.grad().layout(), x.layout());
    EXPECT_EQ(two.grad().mesh(), local);
    const DeviceMesh all = *DeviceMesh::Parse("all=3");
    DT_ASSIGN_OR_RETURN(const auto gradient, x.grad().Redistribute(Layout::Replicated(all, 1)));
    EXPECT_THAT(*ToGlobal<double>(gradient), testing::Each(2));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
