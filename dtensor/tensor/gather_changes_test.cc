// What operators save instead of a gathered tensor, if the program changes it or its source before
// Backward: writes, set_requires_grad, sources without any other handle.
#include <functional>
#include <numeric>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/gather_group.h"
#include "dtensor/tensor/recompute.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

// Twice the values.
absl::Status Double(const DistributedTensor& x) {
  DT_RETURN_IF_ERROR(BeforeWrite(x));
  DT_ASSIGN_OR_RETURN(std::vector<float> values, ToHost<float>(x.local()));
  for (float& value : values) value *= 2;
  DT_ASSIGN_OR_RETURN(const Tensor twice,
                      FromHost<float>(x.context().device(), values, x.local().shape()));
  return kernels::Copy(x.context().device(), twice, x.local());
}

// What sum(read w) says of w's gradient: row k has the sum of column k of what was read.
absl::Status ExpectReadAs(const DistributedTensor& read, absl::Span<const float> values) {
  const Layout whole = Layout::Replicated(read.mesh(), 2);
  DT_ASSIGN_OR_RETURN(auto w, RandomNormal(read.context(), whole, {4, 2}, {.seed = 2}));
  DT_RETURN_IF_ERROR(w.set_requires_grad(true));
  DT_RETURN_IF_ERROR(Backward(Sum(MatMul(read, w), {0, 1})));
  DT_RETURN_IF_ERROR(ReduceGradients({w}));
  DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<float>(w.grad()));
  for (int k = 0; k < 4; ++k) {
    EXPECT_EQ(gradient[2 * k], values[k] + values[4 + k] + values[8 + k] + values[12 + k]);
  }
  return absl::OkStatus();
}

std::vector<float> Times(float factor, std::vector<float> values) {
  for (float& value : values) value *= factor;
  return values;
}

// x [4, 4] as S(0), S(1), whose halves are h, and of which all is y.
void OnHalves(
    const std::function<absl::Status(const DistributedTensor& x, const Layout& half,
                                     const Layout& whole, const std::vector<float>& values)>& fn) {
  DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
    std::vector<float> values(16);
    std::iota(values.begin(), values.end(), -5.0f);
    for (const bool wanted : {false, true}) {
      DT_ASSIGN_OR_RETURN(auto x, Distribute<float>(context, mesh, {Shard(0), Shard(1)}, {4, 4},
                                                    absl::MakeConstSpan(values)));
      DT_RETURN_IF_ERROR(x.set_requires_grad(wanted));
      DT_ASSIGN_OR_RETURN(const Layout half,
                          Layout::FromPlacements(mesh, {Shard(0), Replicate()}, {4, 4}));
      DT_RETURN_IF_ERROR(fn(x, half, Layout::Replicated(mesh, 2), values));
    }
    return absl::OkStatus();
  }));
}

TEST(RedistributeForUse, AResultThatIsWrittenBeforeItIsReadIsSavedItself) {
  OnHalves([](const DistributedTensor& x, const Layout&, const Layout& whole,
              const std::vector<float>& values) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto y, RedistributeForUse(x, whole));
    DT_RETURN_IF_ERROR(Double(y.Detach()));
    DT_RETURN_IF_ERROR(ExpectReadAs(y, Times(2, values)));
    // As another one is, which was not written to.
    DT_ASSIGN_OR_RETURN(const auto again, RedistributeForUse(x, whole));
    return ExpectReadAs(again, values);
  });
}

TEST(RedistributeForUse, ASourceThatIsWrittenBeforeTheResultIsReadIsNotSaved) {
  OnHalves([](const DistributedTensor& x, const Layout&, const Layout& whole,
              const std::vector<float>& values) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto before, RedistributeForUse(x, whole));
    DT_RETURN_IF_ERROR(Double(x));
    DT_ASSIGN_OR_RETURN(const auto after, RedistributeForUse(x, whole));
    DT_RETURN_IF_ERROR(ExpectReadAs(before, values));
    DT_RETURN_IF_ERROR(ExpectReadAs(after, Times(2, values)));
    DT_RETURN_IF_ERROR(Double(x.Detach()));
    DT_RETURN_IF_ERROR(ExpectReadAs(after, Times(2, values)));
    return ExpectReadAs(before, values);
  });
}

TEST(RedistributeForUse, AChainEndsWhereSomethingWasWritten) {
  OnHalves([](const DistributedTensor& x, const Layout& half, const Layout& whole,
              const std::vector<float>& values) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto h, RedistributeForUse(x, half));
    DT_RETURN_IF_ERROR(Double(x));
    DT_ASSIGN_OR_RETURN(const auto of_before, RedistributeForUse(h, whole));
    DT_RETURN_IF_ERROR(ExpectReadAs(of_before, values));
    DT_RETURN_IF_ERROR(Double(h.Detach()));
    DT_RETURN_IF_ERROR(Double(h.Detach()));
    DT_ASSIGN_OR_RETURN(const auto of_written, RedistributeForUse(h, whole));
    DT_RETURN_IF_ERROR(ExpectReadAs(of_written, Times(4, values)));
    DT_RETURN_IF_ERROR(ExpectReadAs(of_before, values));
    DT_RETURN_IF_ERROR(ExpectReadAs(h, Times(4, values)));
    return absl::OkStatus();
  });
}

// --- Of groups.

constexpr int64_t kDim = 4;

// A leaf that rests as S(0), in a group that uses it whole.
absl::StatusOr<DistributedTensor> Member(Context& context, const DeviceMesh& mesh,
                                         GatherGroup& group, float first) {
  std::vector<float> values(kDim * kDim);
  std::iota(values.begin(), values.end(), first);
  DT_ASSIGN_OR_RETURN(auto leaf, Distribute<float>(context, mesh, {Shard(0)}, {kDim, kDim},
                                                   absl::MakeConstSpan(values)));
  leaf.set_pinned(true);
  DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
  DT_RETURN_IF_ERROR(group.Add(leaf, Layout::Replicated(mesh, 2)));
  return leaf;
}

void OnPair(const std::function<absl::Status(Context&, const DeviceMesh&, GatherGroup&)>& fn) {
  for (const ShardLevel level :
       {ShardLevel::kOptimizer, ShardLevel::kGradients, ShardLevel::kParameters}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
      const auto groups = GatherGroups::New();
      return fn(context, mesh, *groups->Add(level));
    }));
  }
}

TEST(GatherGroup, WhatWasGatheredBeforeALeafWasWrittenIsSavedItself) {
  OnPair([](Context& context, const DeviceMesh& mesh, GatherGroup& group) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto w, Member(context, mesh, group, -5));
    DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(w));
    DT_ASSIGN_OR_RETURN(const auto before, ForUse(w));
    DT_RETURN_IF_ERROR(Double(w));
    DT_ASSIGN_OR_RETURN(const auto after, ForUse(w));
    DT_RETURN_IF_ERROR(ExpectReadAs(before, values));
    DT_RETURN_IF_ERROR(ExpectReadAs(after, Times(2, values)));
    DT_RETURN_IF_ERROR(Double(after.Detach()));
    DT_RETURN_IF_ERROR(ExpectReadAs(after, Times(4, values)));
    DT_ASSIGN_OR_RETURN(const auto again, ForUse(w));
    return ExpectReadAs(again, Times(2, values));
  });
}

TEST(GatherGroup, ALeafThatWantsNoGradientAnyMoreGetsWhatWasRecorded) {
  OnPair([](Context& context, const DeviceMesh& mesh, GatherGroup& group) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto w, Member(context, mesh, group, -5));
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {Shard(0)}, {2, kDim}, DType::kF32, 1));
    const TensorOr loss = Sum(MatMul(x, ForUse(w)), {0, 1});
    DT_RETURN_IF_ERROR(w.set_requires_grad(false));
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients({w}));
    EXPECT_THAT(ToGlobal<float>(w.grad()), IsOkAndHolds(std::vector<float>(kDim * kDim, 2)));
    return absl::OkStatus();
  });
}

// --- Sources that the tape alone has. A function that does not use its second operand lets go of
// the operators behind that one when it has run again: nobody walks them.

TensorsOr First(absl::Span<const DistributedTensor> operands) {
  DT_ASSIGN_OR_RETURN(auto y, Silu(operands[0]));
  return std::vector<DistributedTensor>{std::move(y)};
}

TEST(GatherGroup, AMemberMayGoWhileItsGroupIsToBeGathered) {
  OnPair([](Context& context, const DeviceMesh& mesh, GatherGroup& group) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto w, Member(context, mesh, group, -5));
    DT_ASSIGN_OR_RETURN(const auto x, Full(context, mesh, {Shard(0)}, {2, kDim}, DType::kF32, 1));
    std::vector<float> gradients[2];
    for (const bool gone : {false, true}) {
      TensorOr loss;
      DistributedTensor v;
      {
        DT_ASSIGN_OR_RETURN(v, Member(context, mesh, group, -7));
        DT_ASSIGN_OR_RETURN(const auto used, MatMul(x, ForUse(w)));
        DT_ASSIGN_OR_RETURN(const auto unused, MatMul(x, ForUse(v)));
        DT_ASSIGN_OR_RETURN(const auto y, Recompute({used, unused}, First));
        loss = Sum(y[0], {0, 1});
      }
      if (gone) v = {};
      // Of a group that waits for v in vain, w is reduced all the same; buckets reduce all.
      const int64_t bucket_bytes = group.level() == ShardLevel::kOptimizer ? 1 : 0;
      DT_RETURN_IF_ERROR(Backward(loss, {.bucket_bytes = bucket_bytes}));
      EXPECT_EQ(w.grad().layout(), w.layout());
      DT_ASSIGN_OR_RETURN(gradients[gone], ToGlobal<float>(w.grad()));
      DistributedTensor(w).ClearGrad();
    }
    EXPECT_EQ(gradients[1], gradients[0]);
    return absl::OkStatus();
  });
}

// Two operators read one source, and only one of them is walked. Then it is gone, and others take
// its place in memory.
TEST(RedistributeForUse, ASourceThatIsGoneIsNotTakenForAnother) {
  const auto gradients = [](Context& context, bool again) -> absl::StatusOr<std::vector<float>> {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    const Layout whole = Layout::Replicated(mesh, 2);
    const auto gathered = [&](const TensorOr& x) -> TensorOr {
      DT_RETURN_IF_ERROR(x.status());
      return again ? RedistributeForUse(*x, whole) : x->Redistribute(whole);
    };
    DT_ASSIGN_OR_RETURN(auto w, RandomNormal(context, whole, {kDim, kDim}, {.seed = 1}));
    DT_RETURN_IF_ERROR(w.set_requires_grad(true));
    TensorOr loss;
    {
      DT_ASSIGN_OR_RETURN(DistributedTensor h,
                          RandomNormal(context, mesh, {Shard(0)}, {kDim, kDim}, {.seed = 2}));
      const auto part = [&](absl::Span<const DistributedTensor> x) -> TensorsOr {
        DT_ASSIGN_OR_RETURN(const auto rows, x[0].Redistribute({Shard(0)}));
        DT_ASSIGN_OR_RETURN(auto y, MatMul(gathered(Scale(rows, .5)), w));
        return std::vector<DistributedTensor>{std::move(y)};
      };
      for (int i = 0; i < 4; ++i) {
        DT_ASSIGN_OR_RETURN(const auto y, Recompute({h}, part));
        h = y[0];
      }
      DT_ASSIGN_OR_RETURN(const auto y, gathered(Scale(h.Redistribute({Shard(0)}), 2)));
      DT_ASSIGN_OR_RETURN(const auto used, MatMul(y, w));
      DT_ASSIGN_OR_RETURN(const auto unused, MatMul(y, w));
      DT_ASSIGN_OR_RETURN(const auto last, Recompute({used, unused}, First));
      loss = Sum(last[0], {0, 1});
    }
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_RETURN_IF_ERROR(ReduceGradients({w}));
    return ToGlobal<float>(w.grad());
  };
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto kept, gradients(context, false));
    DT_ASSIGN_OR_RETURN(const auto again, gradients(context, true));
    EXPECT_EQ(again, kept);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
