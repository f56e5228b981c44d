// CumSum, Tril, Triu, OneHot and IndexSelect of sharded operands: what moves, and what is refused.
#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorOr Make(Context& context, const std::string& layout, const Dims& shape) {
  const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
  std::vector<double> values(NumElements(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i + 1);
  return Distribute<double>(context, *Layout::Parse(mesh, layout), shape, values);
}

int64_t Bytes(Context& context) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : context.communicator().traffic()) bytes += traffic.bytes;
  context.communicator().ResetTraffic();
  return bytes;
}

// One f64 for each of two columns.
TEST(CumSum, ExchangesTheShardsSums) {
  for (const char* const layout : {"[tp] []", "[tp:zigzag] []"}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, layout, {8, 2}));
      Bytes(context);
      DT_ASSIGN_OR_RETURN(const auto y, CumSum(x, 0));
      const int64_t runs = layout[3] == ']' ? 1 : 2;
      EXPECT_EQ(Bytes(context), runs * 2 * 8) << layout;
      EXPECT_EQ(y.layout().ToString(), layout);
      EXPECT_THAT(*ToGlobal<double>(y),
                  ElementsAre(1, 2, 4, 6, 9, 12, 16, 20, 25, 30, 36, 42, 49, 56, 64, 72));
      return absl::OkStatus();
    }));
  }
}

TEST(CumSum, OfManyRoundsIsMadeContiguous) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, "[_ x 2(tp)]", {24}));
    DT_ASSIGN_OR_RETURN(const auto y, CumSum(x, -1));
    EXPECT_EQ(y.layout().ToString(), "[tp]");
    EXPECT_EQ(ToGlobal<double>(y)->back(), 300);
    return absl::OkStatus();
  }));
}

TEST(CumSum, OfPartialTermsIsPartial) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, "[] [tp]", {3, 4}));
    DT_ASSIGN_OR_RETURN(const auto y, CumSum(Sum(x, {1}), 0));
    EXPECT_EQ(y.layout().ToString(), "[] P(sum: tp)");
    EXPECT_THAT(*ToGlobal<double>(y), ElementsAre(10, 36, 78));
    EXPECT_THAT(CumSum(x, 2), Refuses(HasSubstr("CumSum")));
    EXPECT_THAT(CumSum(Less(x, x), 0), Refuses(HasSubstr("bool")));
    return absl::OkStatus();
  }));
}

TEST(Triangle, MovesNothing) {
  for (const char* const layout : {"[tp] []", "[] [tp]", "[tp:zigzag] []"}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto x, Make(context, layout, {4, 3}));
      Bytes(context);
      DT_ASSIGN_OR_RETURN(const auto lower, Tril(x));
      DT_ASSIGN_OR_RETURN(const auto upper, Triu(x, 1));
      EXPECT_EQ(Bytes(context), 0) << layout;
      EXPECT_EQ(lower.layout().ToString(), layout);
      EXPECT_THAT(*ToGlobal<double>(lower), ElementsAre(1, 0, 0, 4, 5, 0, 7, 8, 9, 10, 11, 12));
      EXPECT_THAT(*ToGlobal<double>(upper), ElementsAre(0, 2, 3, 0, 0, 6, 0, 0, 0, 0, 0, 0));
      return absl::OkStatus();
    }));
  }
}

TEST(OneHot, OfShardedIds) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(const auto ids,
                        Distribute<int32_t>(context, mesh, {Shard(0)}, {3}, {{2, 0, 7}}));
    DT_ASSIGN_OR_RETURN(const auto y, OneHot(ids, 3, DType::kI64));
    EXPECT_EQ(Bytes(context), 0);
    EXPECT_EQ(y.layout().ToString(), "[tp] []");
    EXPECT_THAT(*ToGlobal<int64_t>(y), ElementsAre(0, 0, 1, 1, 0, 0, 0, 0, 0));
    EXPECT_THAT(OneHot(Cast(ids, DType::kF32), 3), Refuses(HasSubstr("i32 or i64")));
    EXPECT_THAT(OneHot(ids, -1), Refuses(HasSubstr("-1 classes")));
    return absl::OkStatus();
  }));
}

TEST(IndexSelect, OfAShardedDimensionIsPartial) {
  DT_EXPECT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const DeviceMesh mesh = *DeviceMesh::Parse("tp=2");
    DT_ASSIGN_OR_RETURN(const auto ids,
                        Distribute<int32_t>(context, mesh, {Replicate()}, {3}, {{2, 0, 2}}));
    DT_ASSIGN_OR_RETURN(const auto x, Make(context, "[] [tp] []", {2, 4, 1}));
    DT_ASSIGN_OR_RETURN(const auto y, IndexSelect(x, 1, ids));
    EXPECT_EQ(Bytes(context), 0);
    EXPECT_EQ(y.layout().ToString(), "[] [] [] P(sum: tp)");
    EXPECT_THAT(*ToGlobal<double>(y), ElementsAre(3, 1, 3, 7, 5, 7));
    EXPECT_THAT(IndexSelect(x, 1, x), Refuses(HasSubstr("one dimension")));
    EXPECT_THAT(IndexSelect(x, 3, ids), Refuses(HasSubstr("IndexSelect")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
