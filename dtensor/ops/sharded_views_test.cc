// Slice, SplitTensor, Concat and Pad along a sharded dimension. An operand that is split within its
// units stays where it is. One that is split otherwise is moved there with fewer bytes than a
// gather takes. Only an operand without such units is gathered.
#include <string>
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

using ::testing::ElementsAre;

// 0, 1, 2, ...
absl::StatusOr<DistributedTensor> Count(Context& context, const DeviceMesh& mesh,
                                        const char* layout, Dims shape) {
  DT_ASSIGN_OR_RETURN(const Layout parsed, Layout::Parse(mesh, layout));
  std::vector<double> values(NumElements(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  DT_ASSIGN_OR_RETURN(auto tensor, Place(context, parsed, shape, DType::kF32, values, /*seed=*/5));
  context.communicator().ResetTraffic();
  return tensor;
}

std::string Text(const TensorOr& tensor) {
  return tensor.ok() ? tensor->layout().ToString() : tensor.status().ToString();
}

int64_t Bytes(Context& context) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) bytes += traffic.bytes;
  return bytes;
}

// Two matrices side by side, each split by columns: both halves are every rank's own.
TEST(ShardedViews, AFusedProjectionSplitsWhereItLies) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto x, Count(context, mesh, "[] [_ x 4(tp)]", {2, 8}));
    DT_RETURN_IF_ERROR(x.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto parts, SplitTensor(x, 1, {4, 4}));
    const TensorOr half = Slice(x, 1, 4, 8);
    for (const TensorOr& part : {TensorOr(parts[0]), TensorOr(parts[1]), half}) {
      EXPECT_EQ(Text(part), "[] [tp]");
      EXPECT_TRUE(part->local().SharesStorageWith(x.local()));
    }
    EXPECT_EQ(Text(Concat({parts[0], parts[1]}, 1)), "[] [_ x 4(tp)]");
    const TensorOr loss = Sum(Add(parts[0], Mul(parts[1], half)), {0});
    DT_RETURN_IF_ERROR(Backward(Sum(loss, {0})));
    EXPECT_EQ(Bytes(context), 0);
    EXPECT_EQ(Text(x.grad()), "[] [_ x 4(tp)]");
    EXPECT_THAT(GlobalValues(x.grad()),
                IsOkAndHolds(ElementsAre(1, 1, 1, 1, 8, 10, 12, 14, 1, 1, 1, 1, 24, 26, 28, 30)));
    EXPECT_THAT(GlobalValues(*half), IsOkAndHolds(ElementsAre(4, 5, 6, 7, 12, 13, 14, 15)));
    return absl::OkStatus();
  });
}

// Another offset with the same units is no other decision; they are in it for a split dimension
// alone.
TEST(ShardedViews, OffsetsShareDecisions) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Count(context, mesh, "[] [_ x 2(tp)]", {1, 8}));
    EXPECT_THAT(GlobalValues(*Slice(x, 1, 2, 4)), IsOkAndHolds(ElementsAre(2, 3)));
    EXPECT_THAT(GlobalValues(*Slice(x, 1, 6, 8)), IsOkAndHolds(ElementsAre(6, 7)));
    EXPECT_THAT(GlobalValues(*Slice(x, 1, 2, 8)), IsOkAndHolds(ElementsAre(2, 3, 4, 5, 6, 7)));
    return absl::OkStatus();
  });
}

struct Cut {
  const char* what;
  std::function<TensorOr(const DistributedTensor&)> call;
  const char* layout;  // of the result
  std::vector<double> values;
  std::vector<double> gradient;  // of the result's sum
};

std::vector<Cut> Cuts() {
  return {
      {"slice",
       [](const DistributedTensor& x) { return Slice(x, 0, 2, 6); },
       "[_ x 2(tp)]",
       {2, 3, 4, 5},
       {0, 0, 1, 1, 1, 1, 0, 0}},
      {"half",
       [](const DistributedTensor& x) { return Slice(x, 0, 4, 8); },
       "[tp]",
       {4, 5, 6, 7},
       {0, 0, 0, 0, 1, 1, 1, 1}},
      {"split",
       [](const DistributedTensor& x) -> TensorOr {
         DT_ASSIGN_OR_RETURN(const auto parts, SplitTensor(x, 0, {2, 6}));
         return parts[1];
       },
       "[_ x 2(tp)]",
       {2, 3, 4, 5, 6, 7},
       {0, 0, 1, 1, 1, 1, 1, 1}},
      {"pad",
       [](const DistributedTensor& x) { return Pad(x, 0, 4, 0, 9); },
       "[_ x 4(tp)]",
       {9, 9, 9, 9, 0, 1, 2, 3, 4, 5, 6, 7},
       {1, 1, 1, 1, 1, 1, 1, 1}},
      {"concat",
       [](const DistributedTensor& x) -> TensorOr {
         DT_ASSIGN_OR_RETURN(const auto sevens,
                             Full(x.context(), x.mesh(), {Replicate()}, {4}, DType::kF32, 7));
         return Concat({x, sevens}, 0);
       },
       "[_ x 4(tp)]",
       {0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7},
       {1, 1, 1, 1, 1, 1, 1, 1}},
  };
}

TEST(ShardedViews, WhatIsSplitOtherwiseIsBroughtByFewerBytesThanAGather) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[tp]", "[tp:zigzag]"}) {
      for (const Cut& cut : Cuts()) {
        DT_ASSIGN_OR_RETURN(auto x, Count(context, mesh, layout, {8}));
        DT_RETURN_IF_ERROR(x.set_requires_grad(true));
        const TensorOr y = cut.call(x);
        EXPECT_EQ(Text(y), cut.layout) << cut.what;
        const int64_t moved = Bytes(context);
        EXPECT_THAT(GlobalValues(*y), IsOkAndHolds(cut.values)) << cut.what;
        DT_RETURN_IF_ERROR(Backward(Sum(y, {0})));
        EXPECT_THAT(GlobalValues(x.grad()), IsOkAndHolds(cut.gradient)) << cut.what;

        DT_ASSIGN_OR_RETURN(x, Count(context, mesh, layout, {8}));
        DT_RETURN_IF_ERROR(x.Redistribute({Replicate()}).status());
        EXPECT_LT(moved, Bytes(context)) << cut.what << " of " << layout;
      }
    }
    return absl::OkStatus();
  });
}

// Where no unit has an element for each shard.
TEST(ShardedViews, WithoutUnitsADimensionIsGathered) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Count(context, mesh, "[tp]", {8}));
    EXPECT_EQ(Text(Slice(x, 0, 1, 8)), "[]");
    EXPECT_EQ(Text(Pad(x, 0, 0, 1)), "[]");
    EXPECT_THAT(GlobalValues(*Pad(x, 0, 0, 1)),
                IsOkAndHolds(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 0)));
    return absl::OkStatus();
  });
}

// Parts of one size are units: however they are split, alike, nothing moves.
TEST(ShardedViews, PartsOfOneSizeAreJoinedWhereTheyLie) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[tp]", "[tp:zigzag]"}) {
      DT_ASSIGN_OR_RETURN(const auto a, Count(context, mesh, layout, {4}));
      const TensorOr joined = Concat({a, a}, 0), stacked = Stack({a, a}, 0);
      EXPECT_EQ(Bytes(context), 0);
      EXPECT_EQ(Text(stacked), std::string("[] ") + layout);
      EXPECT_THAT(GlobalValues(*joined), IsOkAndHolds(ElementsAre(0, 1, 2, 3, 0, 1, 2, 3)));
      EXPECT_THAT(GlobalValues(*stacked), IsOkAndHolds(ElementsAre(0, 1, 2, 3, 0, 1, 2, 3)));
    }
    return absl::OkStatus();
  });
}

// An operand that is whole is cut where it lies, so that its partner need not be gathered.
TEST(ShardedViews, AWholePartGoesWhereTheOtherIsSplit) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto split, Count(context, mesh, "[_ x 2(tp)]", {4}));
    DT_ASSIGN_OR_RETURN(const auto whole, Count(context, mesh, "[]", {2}));
    const TensorOr joined = Concat({whole, split}, 0);
    EXPECT_EQ(Bytes(context), 0);
    EXPECT_EQ(Text(joined), "[_ x 2(tp)]");
    EXPECT_THAT(GlobalValues(*joined), IsOkAndHolds(ElementsAre(0, 1, 0, 1, 2, 3)));
    return absl::OkStatus();
  });
}

// A padding of ones is added once, not once for each term.
TEST(ShardedViews, APaddingOfTermsCountsOnce) {
  OnTwoRanks([](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Count(context, mesh, "[] P(sum: tp)", {2}));
    EXPECT_EQ(Text(Pad(x, 0, 1, 0)), "[] P(sum: tp)");
    EXPECT_EQ(Bytes(context), 0);
    EXPECT_THAT(GlobalValues(*Pad(x, 0, 1, 0)), IsOkAndHolds(ElementsAre(0, 0, 1)));
    EXPECT_THAT(GlobalValues(*Pad(x, 0, 1, 0, 1)), IsOkAndHolds(ElementsAre(1, 0, 1)));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
