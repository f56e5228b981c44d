// Redistribute() with options, and between meshes, as a program uses them.
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd.h"
#include "dtensor/distributed_tensor.h"
#include "dtensor/ops.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

std::vector<float> CountTo(int n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

// Each rank's term is the sequence 1, 2, ... times its rank plus one.
TensorOr Terms(Context& context, const DeviceMesh& mesh, int n) {
  std::vector<float> values = CountTo(n);
  for (float& value : values) value *= static_cast<float>(context.rank() + 1);
  DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), values, {n}));
  return FromLocal(context, mesh, {Partial()}, {n}, local);
}

TEST(RedistributeOptionsTest, AnAllReduceInPlaceAllocatesNothing) {
  for (int ranks : {2, 3}) {
    EXPECT_THAT(
        RunRanks(ranks,
                 [&](Context& context) -> absl::Status {
                   const DeviceMesh mesh = Mesh(absl::StrCat("a=", ranks));
                   DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh, 10));
                   const RedistributeOptions options{
                       .plan = RedistributionOptions{.max_extra_bytes = 0, .in_place = true}};
                   const void* before = x.local().raw();
                   DT_ASSIGN_OR_RETURN(const auto sum, x.Redistribute({Replicate()}, options));
                   EXPECT_EQ(sum.local().raw(), before);
                   DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(sum));
                   std::vector<float> want = CountTo(10);
                   for (float& v : want) v *= ranks == 2 ? 3 : 6;
                   EXPECT_EQ(got, want);
                   return absl::OkStatus();
                 }),
        IsOk());
  }
}

TEST(RedistributeOptionsTest, ACapIsRefusedOnEveryRankAndLeavesTheContextUsable) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         const DeviceMesh mesh = Mesh("a=2");
                         DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh, 10));
                         RedistributionOptions options;
                         options.max_extra_bytes = 39;
                         EXPECT_THAT(x.Redistribute({Replicate()}, {.plan = options}).status(),
                                     StatusIs(absl::StatusCode::kResourceExhausted,
                                              AllOf(HasSubstr("has 40 bytes"),
                                                    HasSubstr("or reduce in place"))));
                         // As the Context's own, for all that operators move too.
                         context.set_redistribution_options(options);
                         EXPECT_FALSE(Mul(x, x).ok());
                         EXPECT_EQ(context.redistribution_options().max_extra_bytes, 39);
                         context.set_redistribution_options({});
                         return x.Redistribute({Replicate()}).status();
                       }),
              IsOk());
}

TEST(RedistributeOptionsTest, ConvertsOnTheWay) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         const DeviceMesh mesh = Mesh("a=2");
                         DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh, 6));
                         DT_ASSIGN_OR_RETURN(const auto y,
                                             x.Redistribute({Shard(0)}, {.dtype = DType::kBF16}));
                         EXPECT_EQ(y.dtype(), DType::kBF16);
                         DT_ASSIGN_OR_RETURN(const auto z,
                                             y.Redistribute({Replicate()}, {.dtype = DType::kF32}));
                         DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(z));
                         EXPECT_EQ(got, (std::vector<float>{3, 6, 9, 12, 15, 18}));
                         EXPECT_THAT(
                             x.Redistribute({Shard(0)}, {.dtype = DType::kF64}).status(),
                             StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Cast")));
                         return absl::OkStatus();
                       }),
              IsOk());
}

TEST(RedistributeOptionsTest, AsyncIsReadyAtItsFirstUse) {
  for (const Device::Kind device : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    EXPECT_THAT(
        RunRanks(2,
                 [](Context& context) -> absl::Status {
                   const DeviceMesh mesh = Mesh("a=2");
                   const std::vector<float> values = CountTo(8);
                   DT_ASSIGN_OR_RETURN(auto x,
                                       Distribute<float>(context, mesh, {Shard(0)}, {8}, values));
                   x.set_requires_grad(true);
                   DT_ASSIGN_OR_RETURN(auto y, x.Redistribute({Replicate()}, {.async = true}));
                   DT_ASSIGN_OR_RETURN(auto unread, x.Redistribute({Replicate()}, {.async = true}));
                   DT_ASSIGN_OR_RETURN(const auto other, Mul(x, x));  // meanwhile
                   DT_ASSIGN_OR_RETURN(const auto square, Mul(y, y));
                   unread = DistributedTensor();
                   DT_RETURN_IF_ERROR(Backward(Sum(square, {0})));
                   DT_ASSIGN_OR_RETURN(const auto gradient, ToGlobal<float>(x.grad()));
                   for (int i = 0; i < 8; ++i) EXPECT_EQ(gradient[i], 2 * values[i]);
                   DT_ASSIGN_OR_RETURN(const auto squares, ToGlobal<float>(square));
                   EXPECT_EQ(squares[7], 64);
                   return absl::OkStatus();
                 },
                 {.device = device, .max_delay_us = 50}),
        IsOk());
  }
}

// Two stages of a pipeline: what the first computes, the second goes on with.
TEST(RedistributeOptionsTest, FromOneMeshToAnother) {
  EXPECT_THAT(
      RunRanks(4,
               [](Context& context) -> absl::Status {
                 const DeviceMesh first = Mesh("tp=2@1,0"), second = Mesh("tp=2@2..3");
                 DT_ASSIGN_OR_RETURN(
                     auto x, Distribute<float>(context, first, {Shard(0)}, {8}, CountTo(8)));
                 if (context.rank() < 2) {
                   DT_ASSIGN_OR_RETURN(x, Add(x, x));
                 } else {
                   EXPECT_THAT(Add(x, x).status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                            HasSubstr("is not on the mesh")));
                 }
                 DT_ASSIGN_OR_RETURN(const Layout layout,
                                     Layout::FromPlacements(second, {Replicate()}, {8}));
                 DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute(layout));
                 if (context.rank() < 2) {
                   EXPECT_FALSE(ToGlobal<float>(y).ok());
                   return absl::OkStatus();
                 }
                 DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
                 for (int i = 0; i < 8; ++i) EXPECT_EQ(got[i], static_cast<float>(2 * (i + 1)));
                 return absl::OkStatus();
               }),
      IsOk());
}

// Nothing moves, and every rank hears of both requests.
TEST(RedistributeOptionsTest, RanksThatAskForDifferentThings) {
  std::vector<std::string> heard(2);
  const absl::Status status = RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto x, RandomNormal(context, Mesh("a=2"), {Shard(0)}, {4, 6}, {}));
    const Placement wanted = context.rank() == 0 ? Replicate() : Shard(1);
    const absl::Status result = x.Redistribute({wanted}).status();
    heard[context.rank()] = std::string(result.message());
    return result;
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("disagree")));
  for (const std::string& message : heard) {
    EXPECT_THAT(message, AllOf(HasSubstr("all-gather"), HasSubstr("all-to-all")));
  }
}

TEST(RedistributeOptionsTest, RefusesAMeshThatSaysNotWhereItLies) {
  EXPECT_THAT(
      RunRanks(4,
               [](Context& context) {
                 return Full(context, Mesh("tp=2"), {Replicate()}, {8}, DType::kF32, 1).status();
               }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("OnRanks")));
}

}  // namespace
}  // namespace dtensor
