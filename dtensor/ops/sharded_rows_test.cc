// Operators along a sharded dimension merge a few numbers of each shard, and leave the operand
// where it is; TopK gathers it. tests/op_rules_test.cc checks in all layouts that values and
// gradients are those of one rank. This test checks the rest: what moves, ties, NaN, large means.
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void OnRanks(const std::string& text,
             const std::function<absl::Status(Context&, const DeviceMesh&)>& fn) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse(text));
  DT_EXPECT_OK(RunRanks(mesh.size(), [&](Context& context) { return fn(context, mesh); }));
}

absl::StatusOr<DistributedTensor> Make(Context& context, const DeviceMesh& mesh, const char* layout,
                                       Dims shape, const std::vector<double>& values,
                                       DType dtype = DType::kF32) {
  DT_ASSIGN_OR_RETURN(const Layout parsed, Layout::Parse(mesh, layout));
  DT_ASSIGN_OR_RETURN(auto tensor, Place(context, parsed, shape, dtype, values, /*seed=*/5));
  if (IsFloat(dtype)) DT_RETURN_IF_ERROR(tensor.set_requires_grad(true));
  return tensor;
}

std::vector<double> Numbers(int64_t n) {
  std::vector<double> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = std::sin(static_cast<double>(7 * i));
  return values;
}

// Bytes that this rank received from others; all of them in all-gathers along tp.
int64_t Received(Context& context) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    EXPECT_EQ(key, TrafficKey("tp", CollectiveKind::kAllGather));
    bytes += traffic.bytes;
  }
  context.communicator().ResetTraffic();
  return bytes;
}

// What moves for x of [6, 50] f32 whose second dimension is sharded.
struct Moves {
  const char* what;
  std::function<TensorOr(const TensorOr& x, const TensorOr& w)> call;
  int64_t forward, backward;  // bytes for each row and other shard; backward < 0: there is none
};

TEST(ShardedRowsTest, AFewNumbersMoveForEachRow) {
  const std::vector<Moves> all = {
      {"Softmax", [](auto& x, auto&) { return Softmax(x); }, 2 * 4, 4},
      {"LogSoftmax", [](auto& x, auto&) { return LogSoftmax(x); }, 2 * 4, 4},
      {"RmsNorm", [](auto& x, auto& w) { return RmsNorm(x, w, 1e-5); }, 4, 4},
      {"LayerNorm", [](auto& x, auto& w) { return LayerNorm(x, w, w, 1e-5); }, 3 * 8, 2 * 4},
      {"Max", [](auto& x, auto&) { return Max(x, {1}); }, 4, 8},
      {"Min", [](auto& x, auto&) { return Min(x, {-1}); }, 4, 8},
      {"ArgMax", [](auto& x, auto&) { return ArgMax(x, 1); }, 2 * 8, -1},
  };
  constexpr int64_t kRows = 6, kColumns = 50, kOthers = 3;
  OnRanks("tp=4", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const Moves& m : all) {
      for (const char* weights : {"[tp]", "[]"}) {
        SCOPED_TRACE(m.what);
        DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] [tp]", {kRows, kColumns},
                                               Numbers(kRows * kColumns)));
        DT_ASSIGN_OR_RETURN(const auto w,
                            Make(context, mesh, weights, {kColumns}, Numbers(kColumns)));
        context.communicator().ResetTraffic();
        DT_ASSIGN_OR_RETURN(const auto y, m.call(x, w));
        EXPECT_EQ(Received(context), kOthers * kRows * m.forward);
        EXPECT_FALSE(y.layout().is_partial());
        EXPECT_EQ(y.layout().ToString(), y.ndim() == 2 ? "[] [tp]" : "[]");
        if (m.backward < 0) continue;
        std::vector<int> dims = {0, 1};
        dims.resize(y.ndim());
        const TensorOr loss = Sum(Mul(y, y), dims);
        DT_RETURN_IF_ERROR(loss.status());
        context.communicator().ResetTraffic();
        DT_RETURN_IF_ERROR(Backward(loss));
        EXPECT_EQ(Received(context), kOthers * kRows * m.backward);
        EXPECT_EQ(x.grad().layout().ToString(), "[] [tp]");
      }
    }
    return absl::OkStatus();
  });
}

// Where a row is whole, nothing moves at all.
TEST(ShardedRowsTest, NothingMovesForWholeRows) {
  OnRanks("tp=4", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[tp] []", "[] []"}) {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, layout, {6, 5}, Numbers(30)));
      DT_ASSIGN_OR_RETURN(const auto w, Make(context, mesh, "[]", {5}, Numbers(5)));
      context.communicator().ResetTraffic();
      const TensorOr y = LayerNorm(LogSoftmax(RmsNorm(Softmax(x), w, 1e-5)), w, w, 1e-5);
      DT_RETURN_IF_ERROR(Backward(Sum(Max(y, {1}), {0})));
      DT_RETURN_IF_ERROR(ArgMax(y, 1).status());
      DT_ASSIGN_OR_RETURN(const auto top, TopK(x, 2));
      DT_RETURN_IF_ERROR(Backward(Sum(top[0], {0, 1})));
      for (const auto& result : top) EXPECT_EQ(result.layout().ToString(), layout);
      EXPECT_EQ(Received(context), 0);
    }
    return absl::OkStatus();
  });
}

// Two reduced dimensions, each sharded by an axis of its own, are merged in one exchange.
TEST(ShardedRowsTest, SeveralReducedDimensionsAreMergedAtOnce) {
  OnRanks("a=2,b=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[a] [b]", {2, 3}, {1, 4, 2, 4, 0, 4}));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const auto y, Max(x, {0, 1}));
    int64_t calls = 0;
    for (const auto& [key, traffic] : context.communicator().traffic()) calls += traffic.calls;
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(y.layout().ToString(), "scalar");
    DT_RETURN_IF_ERROR(Backward(y));
    DT_ASSIGN_OR_RETURN(const auto value, GlobalValues(y));
    DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x.grad()));
    EXPECT_THAT(value, ElementsAre(4));
    const float third = 1 / 3.f;
    EXPECT_THAT(gradient, ElementsAre(0, third, 0, third, 0, third));
    return absl::OkStatus();
  });
}

// Ties count on all shards: counted on each alone, two ranks would give their elements half each.
TEST(ShardedRowsTest, ElementsThatTieShareTheGradientWhereverTheyLie) {
  OnRanks("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] [tp]", "[] []", "[tp] []"}) {
      DT_ASSIGN_OR_RETURN(const auto x,
                          Make(context, mesh, layout, {2, 4}, {5, 1, 5, 5, 2, -3, 7, -3}));
      const TensorOr max = Max(x, {1}), min = Min(x, {1}), first = ArgMax(x, 1);
      DT_ASSIGN_OR_RETURN(const auto indices, GlobalValues(*first));
      EXPECT_THAT(indices, ElementsAre(0, 2)) << layout;
      DT_RETURN_IF_ERROR(Backward(Sum(Add(Scale(max, 3), Scale(min, 8)), {0})));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x.grad()));
      EXPECT_THAT(gradient, ElementsAre(1, 8, 1, 1, 0, 4, 3, 4)) << layout;
    }
    return absl::OkStatus();
  });
}

TEST(ShardedRowsTest, ANaNIsTheResultWhereverItLies) {
  OnRanks("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] [tp]", "[] []"}) {
      DT_ASSIGN_OR_RETURN(const auto x,
                          Make(context, mesh, layout, {2, 4}, {9, kNaN, 5, 5, 2, -3, 7, kNaN}));
      for (const TensorOr& y : {Max(x, {1}), Min(x, {1}), Max(x, {0, 1})}) {
        DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(*y));
        EXPECT_THAT(values, Each(IsNan())) << layout;
      }
      DT_ASSIGN_OR_RETURN(const auto indices, GlobalValues(*ArgMax(x, 1)));
      EXPECT_THAT(indices, ElementsAre(1, 3)) << layout;
    }
    return absl::OkStatus();
  });
}

TEST(ShardedRowsTest, TopKGathersItsRows) {
  OnRanks("tp=2", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] [tp]", "[] []", "[tp] []"}) {
      SCOPED_TRACE(layout);
      DT_ASSIGN_OR_RETURN(const auto x,
                          Make(context, mesh, layout, {2, 4}, {9, kNaN, 5, 5, 2, -3, 7, 2}));
      context.communicator().ResetTraffic();
      DT_ASSIGN_OR_RETURN(const auto top, TopK(x, 3));
      // The half of each row that the other rank has.
      EXPECT_EQ(Received(context), std::string(layout) == "[] [tp]" ? 2 * 2 * 4 : 0);
      DT_ASSIGN_OR_RETURN(const auto values, GlobalValues(top[0]));
      DT_ASSIGN_OR_RETURN(const auto indices, GlobalValues(top[1]));
      EXPECT_THAT(values, ElementsAre(IsNan(), 9, 5, 7, 2, 2));
      EXPECT_THAT(indices, ElementsAre(1, 0, 2, 2, 0, 3));
      DT_ASSIGN_OR_RETURN(const auto weights,
                          Make(context, mesh, "[] []", {2, 3}, {1, 2, 3, 4, 5, 6}));
      DT_RETURN_IF_ERROR(Backward(Sum(Mul(top[0], weights), {0, 1})));
      DT_ASSIGN_OR_RETURN(const auto gradient, GlobalValues(x.grad()));
      EXPECT_THAT(gradient, ElementsAre(2, 1, 3, 0, 5, 0, 4, 6));
    }
    return absl::OkStatus();
  });
}

// More ranks than elements: a shard of nothing is neither large nor small.
TEST(ShardedRowsTest, IntegersAndEmptyShards) {
  const double least = std::numeric_limits<int32_t>::min(), most = -(least + 1);
  OnRanks("tp=4", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, mesh, "[] [tp]", {2, 2},
                                           {least, least, most, most}, DType::kI32));
    const TensorOr max = Max(x, {1}), min = Min(x, {1}), first = ArgMax(x, 1);
    DT_ASSIGN_OR_RETURN(const auto largest, GlobalValues(*max));
    DT_ASSIGN_OR_RETURN(const auto smallest, GlobalValues(*min));
    DT_ASSIGN_OR_RETURN(const auto indices, GlobalValues(*first));
    EXPECT_THAT(largest, ElementsAre(least, most));
    EXPECT_THAT(smallest, ElementsAre(least, most));
    EXPECT_THAT(indices, ElementsAre(0, 0));
    EXPECT_EQ(max->dtype(), DType::kI32);
    EXPECT_EQ(first->dtype(), DType::kI64);
    return absl::OkStatus();
  });
}

// Large numbers that differ by little, in f32, on shards that know nothing of each other.
TEST(ShardedRowsTest, ALayerNormOfALargeMeanIsThatOfOneRank) {
  constexpr int64_t kColumns = 301;
  std::vector<double> x = Numbers(2 * kColumns), y;
  for (double& value : x) value = static_cast<float>(1e4 + value);
  for (int row = 0; row < 2; ++row) {
    double mean = 0, variance = 0;
    for (int i = 0; i < kColumns; ++i) mean += x[row * kColumns + i] / kColumns;
    for (int i = 0; i < kColumns; ++i) {
      variance += std::pow(x[row * kColumns + i] - mean, 2) / kColumns;
    }
    for (int i = 0; i < kColumns; ++i) {
      y.push_back((x[row * kColumns + i] - mean) / std::sqrt(variance + 1e-5));
    }
  }
  OnRanks("tp=3", [&](Context& context, const DeviceMesh& mesh) -> absl::Status {
    for (const char* layout : {"[] [tp]", "[] []"}) {
      DT_ASSIGN_OR_RETURN(const auto tensor, Make(context, mesh, layout, {2, kColumns}, x));
      DT_ASSIGN_OR_RETURN(const auto one,
                          Full(context, mesh, {Replicate()}, {kColumns}, DType::kF32, 1));
      DT_ASSIGN_OR_RETURN(const auto zero,
                          Full(context, mesh, {Replicate()}, {kColumns}, DType::kF32, 0));
      DT_ASSIGN_OR_RETURN(const auto got, GlobalValues(*LayerNorm(tensor, one, zero, 1e-5)));
      // The last bit of 1e4 is 1e-3.
      EXPECT_THAT(got, testing::Pointwise(testing::DoubleNear(2e-3), y)) << layout;
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace dtensor
