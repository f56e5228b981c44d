// Which tensors see a write: aliases do, values do not. A Backward that needs what was overwritten
// reports an error (law 11). Random programs: tests/random_writes_test.cc.
#include <functional>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::StatusCode kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

// On two ranks, of both devices.
void OnTwoRanks(const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
  for (const Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    DT_EXPECT_OK(RunRanks(2,
                          [&](Context& context) -> absl::Status {
                            DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2"));
                            return fn(context, mesh);
                          },
                          {.device = device, .max_delay_us = 20}));
  }
}

// [[1, 2], [3, 4]]
TensorOr Square(Context& context, const DeviceMesh& mesh, Placement placement) {
  return Distribute<float>(context, mesh, {placement}, {2, 2}, {{1, 2, 3, 4}});
}

// Multiplies all elements by 10, in place.
absl::Status TimesTen(const DistributedTensor& tensor) {
  DT_RETURN_IF_ERROR(BeforeWrite(tensor));
  DT_ASSIGN_OR_RETURN(std::vector<float> values, ToHost<float>(tensor.local()));
  for (float& value : values) value *= 10;
  Device& device = tensor.context().device();
  DT_ASSIGN_OR_RETURN(const Tensor written,
                      FromHost<float>(device, values, tensor.local().shape()));
  return kernels::Copy(device, written, tensor.local());
}

TEST(Aliases, SeeAWrite) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const Placement placement : {Replicate(), Shard(0), Shard(1)}) {
      DT_ASSIGN_OR_RETURN(const auto w, Square(context, mesh, placement));
      const DistributedTensor detached = w.Detach();
      const TensorOr turned = Transpose(w, 0, 1), column = Reshape(w, {2, 2, 1});
      // A copy on some ranks; a write to w is seen there all the same.
      const TensorOr flat = Reshape(turned, {2, 1, 2});
      DT_RETURN_IF_ERROR(flat.status());
      const TensorOr twice = Expand(column, {2, 2, 2}), moved = Permute(column, {2, 1, 0});
      DT_RETURN_IF_ERROR(TimesTen(w));
      EXPECT_THAT(ToGlobal<float>(*twice),
                  IsOkAndHolds(ElementsAre(10, 10, 20, 20, 30, 30, 40, 40)));
      EXPECT_THAT(ToGlobal<float>(*moved), IsOkAndHolds(ElementsAre(10, 30, 20, 40)));
      EXPECT_THAT(TimesTen(*twice),
                  StatusIs(kFailedPrecondition, HasSubstr("one place in memory")));
      EXPECT_THAT(ToGlobal<float>(detached), IsOkAndHolds(ElementsAre(10, 20, 30, 40)));
      EXPECT_THAT(ToGlobal<float>(*turned), IsOkAndHolds(ElementsAre(10, 30, 20, 40)));
      EXPECT_THAT(ToGlobal<float>(*column), IsOkAndHolds(ElementsAre(10, 20, 30, 40)));
      EXPECT_THAT(ToGlobal<float>(*flat), IsOkAndHolds(ElementsAre(10, 30, 20, 40)));
      DT_RETURN_IF_ERROR(TimesTen(*turned));
      EXPECT_THAT(ToGlobal<float>(w), IsOkAndHolds(ElementsAre(100, 200, 300, 400)));
      EXPECT_THAT(ToGlobal<float>(*Transpose(flat, 0, 2)),
                  IsOkAndHolds(ElementsAre(100, 200, 300, 400)));
      EXPECT_THAT(TimesTen(*flat), StatusIs(kFailedPrecondition, HasSubstr("not row-major")));
    }
    return absl::OkStatus();
  });
}

// Both slices share a decision, and differ in the offset of the call alone.
TEST(Aliases, SlicesOfWhatMayBeACopySeeAWrite) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const Placement placement : {Replicate(), Shard(1)}) {
      DT_ASSIGN_OR_RETURN(const auto w, Square(context, mesh, placement));
      const TensorOr flat = Reshape(Transpose(w, 0, 1), {2, 1, 2});
      const TensorOr first = Slice(flat, 2, 0, 1), second = Slice(flat, 2, 1, 2);
      DT_RETURN_IF_ERROR(second.status());
      DT_RETURN_IF_ERROR(TimesTen(w));
      EXPECT_THAT(ToGlobal<float>(*first), IsOkAndHolds(ElementsAre(10, 20)));
      EXPECT_THAT(ToGlobal<float>(*second), IsOkAndHolds(ElementsAre(30, 40)));
    }
    return absl::OkStatus();
  });
}

// Of a dimension that is split within its units, as of a whole one.
TEST(Aliases, PartsOfASplitDimensionSeeAWrite) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(
        const auto w,
        Distribute<float>(context, mesh, {Shard(0, ShardOrder::Cyclic(2))}, {4}, {{1, 2, 3, 4}}));
    DT_ASSIGN_OR_RETURN(const auto parts, SplitTensor(w, 0, {2, 2}));
    const TensorOr last = Slice(w, 0, 2, 4);
    DT_RETURN_IF_ERROR(TimesTen(w));
    DT_RETURN_IF_ERROR(TimesTen(*last));
    EXPECT_THAT(ToGlobal<float>(parts[0]), IsOkAndHolds(ElementsAre(10, 20)));
    EXPECT_THAT(ToGlobal<float>(parts[1]), IsOkAndHolds(ElementsAre(300, 400)));
    EXPECT_THAT(ToGlobal<float>(w), IsOkAndHolds(ElementsAre(10, 20, 300, 400)));
    return absl::OkStatus();
  });
}

TEST(Aliases, RememberNothingOfBeforeAWrite) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto w, Square(context, mesh, Shard(0)));
    const DistributedTensor d = w.Detach();
    DT_ASSIGN_OR_RETURN(const auto before, d.Redistribute({Replicate()}));
    DT_RETURN_IF_ERROR(TimesTen(w));
    DT_ASSIGN_OR_RETURN(const auto after, d.Redistribute({Replicate()}));
    EXPECT_THAT(ToGlobal<float>(before), IsOkAndHolds(ElementsAre(1, 2, 3, 4)));
    EXPECT_THAT(ToGlobal<float>(after), IsOkAndHolds(ElementsAre(10, 20, 30, 40)));
    return absl::OkStatus();
  });
}

TEST(Redistributions, AreValuesOnEveryRank) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    // Rank 0 has all of it, and could share; rank 1 cannot.
    DT_ASSIGN_OR_RETURN(const auto w,
                        Distribute<float>(context, mesh, {Shard(0)}, {1, 2}, {{1, 2}}));
    DT_ASSIGN_OR_RETURN(const auto whole, w.Redistribute({Replicate()}));
    DT_ASSIGN_OR_RETURN(const auto again, w.Redistribute({Replicate()}));
    DT_ASSIGN_OR_RETURN(const auto same, w.Redistribute({Shard(0)}));
    DT_ASSIGN_OR_RETURN(const auto part, whole.Redistribute({Shard(1)}));
    DT_RETURN_IF_ERROR(TimesTen(w));
    DT_RETURN_IF_ERROR(TimesTen(again));
    DT_RETURN_IF_ERROR(TimesTen(again));
    EXPECT_THAT(ToGlobal<float>(w), IsOkAndHolds(ElementsAre(10, 20)));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(ElementsAre(1, 2)));
    EXPECT_THAT(ToGlobal<float>(again), IsOkAndHolds(ElementsAre(100, 200)));
    EXPECT_THAT(ToGlobal<float>(same), IsOkAndHolds(ElementsAre(1, 2)));
    EXPECT_THAT(ToGlobal<float>(part), IsOkAndHolds(ElementsAre(1, 2)));
    DT_RETURN_IF_ERROR(TimesTen(whole));
    EXPECT_THAT(ToGlobal<float>(part), IsOkAndHolds(ElementsAre(1, 2)));
    return absl::OkStatus();
  });
}

TEST(Redistributions, OfOneTensorGatherOnce) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto w, Square(context, mesh, Shard(0)));
    DT_ASSIGN_OR_RETURN(const auto same, w.Redistribute({Shard(0)}));
    DT_ASSIGN_OR_RETURN(const auto first, w.Redistribute({Replicate()}));
    const TrafficTable once = context.communicator().traffic();
    DT_RETURN_IF_ERROR(w.Redistribute({Replicate()}).status());
    DT_RETURN_IF_ERROR(same.Redistribute({Replicate()}).status());
    EXPECT_EQ(context.communicator().traffic(), once);
    DT_RETURN_IF_ERROR(TimesTen(w));  // `same` is what it was, and no longer what w is
    DT_ASSIGN_OR_RETURN(const auto second, same.Redistribute({Replicate()}));
    EXPECT_NE(context.communicator().traffic(), once);
    EXPECT_THAT(ToGlobal<float>(second), IsOkAndHolds(ElementsAre(1, 2, 3, 4)));
    return absl::OkStatus();
  });
}

TEST(Redistributions, BroadcastSourcesAreCopied) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x,
                        Distribute<float>(context, mesh, {Shard(0)}, {1, 4}, {{1, 2, 3, 4}}));
    DT_ASSIGN_OR_RETURN(const Tensor one, FromHost<float>(context.device(), {7}, {1, 1}));
    DT_ASSIGN_OR_RETURN(const auto broadcast, FromLocal(context, mesh, {Shard(0)}, {1, 4},
                                                        one.BroadcastTo(x.spec().local_shape)));
    EXPECT_THAT(ToGlobal<float>(broadcast), IsOkAndHolds(Each(7)));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    DT_RETURN_IF_ERROR(Backward(Sum(x, {0, 1})));
    EXPECT_THAT(ToGlobal<float>(x.grad()), IsOkAndHolds(Each(1)));
    return absl::OkStatus();
  });
}

// Rank 0 has two rows of what was expanded, in one place, and rank 1 has a single one.
TEST(Writes, ToAPartOfWhatWasExpandedAreRefusedOnEveryRank) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const auto refused =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("one place in memory"));
    for (const Placement placement : {Replicate(), Shard(0)}) {
      DT_ASSIGN_OR_RETURN(const auto row, Full(context, mesh, {placement}, {1}, DType::kF32, 1));
      DT_ASSIGN_OR_RETURN(const auto rows, Expand(row, {3}));
      for (const RedistributeOptions& options : {RedistributeOptions{}, {.async = true}}) {
        DT_ASSIGN_OR_RETURN(const auto part, rows.Redistribute({Shard(0)}, options));
        EXPECT_THAT(BeforeWrite(part), refused);
        DT_ASSIGN_OR_RETURN(const auto same, part.Redistribute({Shard(0)}));
        EXPECT_THAT(BeforeWrite(same), refused);
        DT_ASSIGN_OR_RETURN(const auto copy, Clone(part));
        DT_EXPECT_OK(BeforeWrite(copy));
        DT_ASSIGN_OR_RETURN(const auto gathered, part.Redistribute({Replicate()}, options));
        DT_EXPECT_OK(BeforeWrite(gathered));
      }
    }
    return absl::OkStatus();
  });
}

TEST(Writes, WaitForAsynchronousReaders) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto w, Square(context, mesh, Shard(0)));
    DT_ASSIGN_OR_RETURN(const auto whole, w.Redistribute({Replicate()}, {.async = true}));
    DT_RETURN_IF_ERROR(TimesTen(w.Detach()));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(ElementsAre(1, 2, 3, 4)));
    EXPECT_THAT(ToGlobal<float>(w), IsOkAndHolds(ElementsAre(10, 20, 30, 40)));
    return absl::OkStatus();
  });
}

TEST(Writes, ABackwardThatNeedsOldValuesOfAnAliasRefuses) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    const std::function<TensorOr(const TensorOr&)> views[] = {
        [](const TensorOr& w) { return Transpose(w, 0, 1); },
        [](const TensorOr& w) {
          return Reshape(w, {4, 1});
        },
        [](const TensorOr& w) { return Slice(w, 1, 1, 2); },
        [](const TensorOr& w) {
          return Reshape(Transpose(w, 0, 1), {1, 4});
        },
        [](const TensorOr& w) { return w; },
    };
    for (const auto& view : views) {
      DT_ASSIGN_OR_RETURN(auto w, Square(context, mesh, Replicate()));
      DT_RETURN_IF_ERROR(w.set_requires_grad(true));
      const TensorOr y = view(w);
      const TensorOr loss = Sum(Mul(y, y), {0, 1});
      DT_RETURN_IF_ERROR(loss.status());
      DT_RETURN_IF_ERROR(TimesTen(w));
      EXPECT_THAT(Backward(loss), StatusIs(kFailedPrecondition, AllOf(HasSubstr("operand 0 of Mul"),
                                                                      HasSubstr("written after"))));
      EXPECT_FALSE(w.grad().defined());
    }
    // Through an alias that requires nothing.
    DT_ASSIGN_OR_RETURN(auto w, Square(context, mesh, Replicate()));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    const TensorOr loss = Sum(Mul(w, w), {0, 1});
    DT_RETURN_IF_ERROR(TimesTen(w.Detach()));
    EXPECT_THAT(Backward(loss), StatusIs(kFailedPrecondition, HasSubstr("written after")));
    return absl::OkStatus();
  });
}

TEST(Writes, RefuseTheResultOfARecordedOperator) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto w, Square(context, mesh, Replicate()));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto y, Silu(w));
    EXPECT_THAT(BeforeWrite(y), StatusIs(kFailedPrecondition, HasSubstr("Detach")));
    EXPECT_THAT(BeforeWrite(DistributedTensor()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
    return BeforeWrite(y.Detach());
  });
}

// P(sum): each rank's term is [1, 2].
TensorOr Terms(Context& context, const DeviceMesh& mesh) {
  DT_ASSIGN_OR_RETURN(Tensor term, FromHost<float>(context.device(), {1, 2}, {2}));
  return FromLocal(context, mesh, {Partial()}, {2}, std::move(term));
}

RedistributeOptions InPlace() { return {.plan = RedistributionOptions{.in_place = true}}; }

TEST(InPlace, LeavesAloneWhatTheTapeHasSaved) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto w, Distribute<float>(context, mesh, {Replicate()}, {2}, {{3, 5}}));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh));
    DT_ASSIGN_OR_RETURN(const auto product, Mul(w, x));
    DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute({Replicate()}, InPlace()));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(ElementsAre(2, 4)));
    DT_RETURN_IF_ERROR(Backward(Sum(product, {0})));
    EXPECT_THAT(ToGlobal<float>(w.grad()), IsOkAndHolds(ElementsAre(2, 4)));
    return absl::OkStatus();
  });
}

TEST(InPlace, LeavesAliasesAndOtherGradientsAlone) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh));
    const DistributedTensor alias = x.Detach();
    DT_ASSIGN_OR_RETURN(const auto whole, x.Redistribute({Replicate()}, InPlace()));
    EXPECT_THAT(ToGlobal<float>(alias), IsOkAndHolds(ElementsAre(2, 4)));
    EXPECT_THAT(ToGlobal<float>(whole), IsOkAndHolds(ElementsAre(2, 4)));
    EXPECT_THAT(ToGlobal<float>(x),
                StatusIs(kFailedPrecondition, HasSubstr("was redistributed in place")));
    // Add hands one gradient to both.
    DT_ASSIGN_OR_RETURN(auto a, Square(context, mesh, Replicate()));
    DT_ASSIGN_OR_RETURN(auto b, Square(context, mesh, Replicate()));
    DT_ASSIGN_OR_RETURN(const auto c, Square(context, mesh, Shard(1)));
    DT_RETURN_IF_ERROR(a.set_requires_grad(true));
    DT_RETURN_IF_ERROR(b.set_requires_grad(true));
    DT_RETURN_IF_ERROR(Backward(Sum(MatMul(Add(a, b), c), {0, 1})));
    EXPECT_TRUE(b.grad().layout().is_partial());
    DT_RETURN_IF_ERROR(b.grad().Redistribute({Replicate()}, InPlace()).status());
    EXPECT_THAT(ToGlobal<float>(a.grad()), IsOkAndHolds(ElementsAre(3, 7, 3, 7)));
    return absl::OkStatus();
  });
}

TEST(InPlace, LeavesOtherResultsOfTheSameRedistributionAlone) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Square(context, mesh, Shard(0)));
    DT_ASSIGN_OR_RETURN(const auto first, x.Redistribute({Partial()}));
    DT_ASSIGN_OR_RETURN(const auto second, x.Redistribute({Partial()}));
    DT_ASSIGN_OR_RETURN(
        const auto whole,
        first.Redistribute({Replicate()}, {.plan = RedistributionOptions{.in_place = true}}));
    for (const auto& tensor : {whole, second}) {
      DT_ASSIGN_OR_RETURN(const auto again, tensor.Redistribute({Replicate()}));
      EXPECT_THAT(ToGlobal<float>(again), IsOkAndHolds(ElementsAre(1, 2, 3, 4)));
    }
    return absl::OkStatus();
  });
}

TEST(InPlace, IsNoDefaultOfAContext) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    EXPECT_THAT(context.set_redistribution_options({.in_place = true}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one Redistribute")));
    DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh));
    DT_RETURN_IF_ERROR(Silu(x).status());
    EXPECT_THAT(ToGlobal<float>(x), IsOkAndHolds(ElementsAre(2, 4)));
    return absl::OkStatus();
  });
}

TEST(NoGrad, NothingComesBackRecorded) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto w, Square(context, mesh, Shard(0)));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto x, Scale(w, 2));
    DT_ASSIGN_OR_RETURN(const auto recorded, x.Redistribute({Replicate()}));
    const NoGrad no_grad(context);
    const std::vector<TensorOr> unrecorded = {x.Redistribute({Replicate()}),
                                              x.Redistribute({Shard(0)}),
                                              Slice(x, 0, 0, 2),
                                              Reshape(x, {2, 2}),
                                              Transpose(x, 1, 1),
                                              Cast(x, DType::kF32),
                                              Concat({x}, 0),
                                              Sum(x, {})};
    context.set_recording(true);
    for (const TensorOr& tensor : unrecorded) {
      EXPECT_THAT(Backward(Sum(tensor, {0, 1})),
                  StatusIs(kFailedPrecondition, HasSubstr("nothing was recorded")));
    }
    return Backward(Sum(recorded, {0, 1}));
  });
}

TEST(Tape, ALongOneIsDroppedWithoutRecursion) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=1"));
    DT_ASSIGN_OR_RETURN(auto w, Square(context, mesh, Replicate()));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    TensorOr x = w;
    for (int i = 0; i < 200'000; ++i) x = Scale(x, 1);
    return x.status();
  }));
}

}  // namespace
}  // namespace dtensor
