// Redistribute() with options, and between meshes, as a program uses them.
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
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

TEST(RedistributeOptionsTest, ThePlansTypeIsTheResultsOrRefused) {
  EXPECT_THAT(
      RunRanks(2,
               [&](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(const auto x, Terms(context, Mesh("a=2"), 10));
                 RedistributeOptions options{.plan = RedistributionOptions{.dtype = DType::kBF16}};
                 EXPECT_THAT(x.Redistribute({Shard(0)}, options),
                             StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("set RedistributeOptions::dtype")));
                 options.dtype = DType::kBF16;
                 DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Shard(0)}, options));
                 EXPECT_EQ(y.dtype(), DType::kBF16);
                 return absl::OkStatus();
               }),
      IsOk());
}

// What x remembers was taken: it is made again.
TEST(RedistributeOptionsTest, WhatWasTakenInPlaceIsNotRemembered) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const auto x, Full(context, Mesh("a=2"), {Replicate()},
                                                                {4}, DType::kF32, 1));
                         DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Partial()}));
                         const RedistributeOptions in_place{
                             .plan = RedistributionOptions{.in_place = true}};
                         DT_RETURN_IF_ERROR(y.Redistribute({Replicate()}, in_place).status());
                         DT_ASSIGN_OR_RETURN(const auto again, x.Redistribute({Partial()}));
                         DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(again));
                         EXPECT_EQ(got, std::vector<float>(4, 1));
                         return absl::OkStatus();
                       }),
              IsOk());
}

// Who redistributes what was redistributed, and keeps the first alone, holds few of the others.
TEST(RedistributeOptionsTest, AChainIsNotRememberedFromItsFirstTensorOn) {
  constexpr int64_t kRows = 64;
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const auto x, Full(context, Mesh("a=2"), {Shard(0)},
                                                                {kRows, kRows}, DType::kF32, 7));
                         DistributedTensor y = x;
                         for (int round = 0; round < 10; ++round) {
                           DT_ASSIGN_OR_RETURN(y, y.Redistribute({Replicate()}));
                           DT_ASSIGN_OR_RETURN(y, y.Redistribute({Shard(1)}));
                           DT_ASSIGN_OR_RETURN(y, y.Redistribute({Shard(0)}));
                         }
                         EXPECT_LE(context.device().memory().live_bytes,
                                   4 * kRows * kRows * sizeof(float));
                         DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
                         EXPECT_EQ(got, std::vector<float>(kRows * kRows, 7));
                         return absl::OkStatus();
                       }),
              IsOk());
}

// Two on a way, as an edge's and that of the operators behind it, are remembered however they are
// used.
TEST(RedistributeOptionsTest, WhatIsRememberedRemembersToo) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const auto x, Full(context, Mesh("a=2"), {Shard(0)},
                                                                {4, 4}, DType::kF32, 7));
                         for (int use = 0; use < 3; ++use) {
                           DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Shard(1)}));
                           DT_RETURN_IF_ERROR(y.Redistribute({Replicate()}).status());
                         }
                         int64_t calls = 0;
                         for (const auto& [key, traffic] : context.communicator().traffic()) {
                           calls += traffic.calls;
                         }
                         EXPECT_EQ(calls, 2);
                         return absl::OkStatus();
                       }),
              IsOk());
}

// A partial axis that becomes Shard leaves a smaller tensor: it gets memory of its own.
TEST(RedistributeOptionsTest, InPlaceOfWhatChangesItsShapeAllocates) {
  const auto scatter = [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), CountTo(4), {4}));
    DT_ASSIGN_OR_RETURN(const auto x,
                        FromLocal(context, Mesh("dp=2,tp=2"), {Partial(), Partial()}, {4}, local));
    RedistributeOptions options;
    options.plan = RedistributionOptions{.in_place = true};
    DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({Replicate(), Shard(0)}, options));
    EXPECT_THAT(y.local().shape(), testing::ElementsAre(2));
    DT_ASSIGN_OR_RETURN(const auto twice, Add(y, y));
    DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(twice));
    EXPECT_EQ(got, (std::vector<float>{8, 16, 24, 32}));
    DT_ASSIGN_OR_RETURN(const auto source, ToHost<float>(x.local()));
    EXPECT_EQ(source, CountTo(4));
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(4, scatter), IsOk());
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
                         DT_RETURN_IF_ERROR(context.set_redistribution_options(options));
                         EXPECT_FALSE(Mul(x, x).ok());
                         EXPECT_EQ(context.redistribution_options().max_extra_bytes, 39);
                         DT_RETURN_IF_ERROR(context.set_redistribution_options({}));
                         return x.Redistribute({Replicate()}).status();
                       }),
              IsOk());
}

// What a table's text may not say, its setters do not smuggle in.
TEST(RedistributeOptionsTest, RefusesCostsThatAreNone) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Refused {
    void (*set)(CostModel& costs, double value);
    const char* words;
    bool zero = true;  // is no value
  };
  const Refused refused[] = {
      {[](CostModel& c, double x) {
         c.Set("a", {x, 1});
       },
       "\"link a\"", false},
      {[](CostModel& c, double x) {
         c.Set("a", {1, x});
       },
       "\"link a\""},
      {[](CostModel& c, double x) {
         c.SetDefault({x, 1});
       },
       "\"link *\"", false},
      {[](CostModel& c, double x) {
         c.SetDefault({1, x});
       },
       "\"link *\""},
      {[](CostModel& c, double x) { c.set_copy_gb_per_second(x); }, "\"copy\""},
      {[](CostModel& c, double x) { c.set_reduce_gb_per_second(x); }, "\"reduce\""},
      {[](CostModel& c, double x) { c.set_multiply_gf_per_second(x); }, "\"multiply\""},
      {[](CostModel& c, double x) { c.set_gemm_gf_per_second(DType::kBF16, x); }, "\"gemm bf16\"",
       false},
      {[](CostModel& c, double x) { c.set_memory_gb_per_second(x); }, "\"memory\"", false},
      {[](CostModel& c, double x) { c.set_call_us(x); }, "\"call\"", false},
  };
  EXPECT_THAT(RunRanks(2,
                       [&](Context& context) -> absl::Status {
                         const DeviceMesh mesh = Mesh("a=2");
                         DT_ASSIGN_OR_RETURN(const auto x, Terms(context, mesh, 6));
                         for (const auto& [set, words, zero] : refused) {
                           for (const double value : {-5.0, kInf, -kInf, kNan, 0.0}) {
                             RedistributionOptions options;
                             set(options.links, value);
                             if (value == 0 && !zero) {
                               DT_EXPECT_OK(context.set_redistribution_options(options));
                               continue;
                             }
                             const auto refuses =
                                 StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
                             EXPECT_THAT(context.set_redistribution_options(options), refuses);
                             EXPECT_THAT(x.Redistribute({Replicate()}, {.plan = options}).status(),
                                         refuses);
                           }
                         }
                         return absl::OkStatus();
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
                   DT_RETURN_IF_ERROR(x.set_requires_grad(true));
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

// The tensor is the sum over dp of the averages over tp, however it is read.
TEST(RedistributeOptionsTest, ASumOfAverages) {
  const auto program = [](Context& context) -> absl::Status {
    const DeviceMesh mesh = Mesh("dp=2,tp=3");
    std::vector<float> values = CountTo(6);
    for (float& value : values) value *= static_cast<float>(context.rank() + 1);
    DT_ASSIGN_OR_RETURN(Tensor local, FromHost<float>(context.device(), values, {6}));
    const Placement sum = Partial(), average = Partial(ReduceOp::kAvg);
    DT_ASSIGN_OR_RETURN(const auto x, FromLocal(context, mesh, {sum, average}, {6}, local));
    std::vector<float> want = CountTo(6);
    for (float& value : want) value *= (1 + 2 + 3) / 3.0f + (4 + 5 + 6) / 3.0f;
    for (const Placement& dp : {Replicate(), Shard(0), sum, average}) {
      for (const Placement& tp : {Replicate(), Shard(0), sum, average}) {
        DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({dp, tp}));
        DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
        for (int i = 0; i < 6; ++i) {
          EXPECT_FLOAT_EQ(got[i], want[i]) << dp.ToString() << tp.ToString();
        }
      }
    }
    // Operators pass it on as it is.
    DT_ASSIGN_OR_RETURN(const auto twice, Add(x, x));
    EXPECT_EQ(twice.layout(), x.layout());
    DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(twice));
    for (int i = 0; i < 6; ++i) EXPECT_FLOAT_EQ(got[i], 2 * want[i]);
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(6, program), IsOk());
}

// Two stages of a pipeline: what the first computes, the second goes on with.
TEST(RedistributeOptionsTest, FromOneMeshToAnother) {
  EXPECT_THAT(RunRanks(4,
                       [](Context& context) -> absl::Status {
                         const DeviceMesh first = Mesh("tp=2@1,0"), second = Mesh("tp=2@2..3");
                         DT_ASSIGN_OR_RETURN(auto x, Distribute<float>(context, first, {Shard(0)},
                                                                       {8}, CountTo(8)));
                         if (context.rank() < 2) {  // others may, but need not, do the same
                           DT_ASSIGN_OR_RETURN(x, Add(x, x));
                         }
                         DT_ASSIGN_OR_RETURN(const Layout layout,
                                             Layout::FromPlacements(second, {Replicate()}, {8}));
                         DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute(layout));
                         if (context.rank() < 2) {
                           EXPECT_FALSE(ToGlobal<float>(y).ok());
                           return absl::OkStatus();
                         }
                         DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(y));
                         for (int i = 0; i < 8; ++i)
                           EXPECT_EQ(got[i], static_cast<float>(2 * (i + 1)));
                         return absl::OkStatus();
                       }),
              IsOk());
}

// Ranks that are not on the mesh take no part: they have a tensor without elements, before and
// after. All ranks may run the same program.
TEST(RedistributeOptionsTest, RanksThatAreNotOnTheMeshTakeNoPart) {
  const auto program = [](Context& context) -> absl::Status {
    const DeviceMesh mesh = Mesh("a=2@2,1");
    const bool on_mesh = mesh.Contains(context.rank());
    DT_ASSIGN_OR_RETURN(const auto x,
                        Distribute<float>(context, mesh, {Shard(0)}, {8}, CountTo(8)));
    for (const Placement& placement : {Replicate(), Shard(0), Partial()}) {
      for (const bool async : {false, true}) {
        DT_ASSIGN_OR_RETURN(const auto y, x.Redistribute({placement}, {.async = async}));
        EXPECT_EQ(y.local().numel() > 0, on_mesh);
        DT_ASSIGN_OR_RETURN(const auto z, y.Redistribute({Replicate()}));
        if (!on_mesh) continue;
        DT_ASSIGN_OR_RETURN(const auto got, ToGlobal<float>(z));
        EXPECT_EQ(got, CountTo(8));
      }
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(4, program), IsOk());
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

TEST(RedistributeInPlace, WhereAnotherDimensionIsCutDownToNothing) {
  DT_EXPECT_OK(RunRanks(4, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
    DT_ASSIGN_OR_RETURN(
        const DistributedTensor x,
        Distribute<float>(context, mesh, {Replicate(), Shard(0)}, {1, 3, 1}, {{1, 2, 3}}));
    DT_ASSIGN_OR_RETURN(const Layout terms, Layout::Parse(mesh, "[b] [] [] P(sum: a)"));
    DT_ASSIGN_OR_RETURN(const DistributedTensor sum,
                        FromLocal(context, terms, {1, 3, 1}, x.local()));
    DT_ASSIGN_OR_RETURN(const DistributedTensor moved,
                        sum.Redistribute({Replicate(), Shard(2)},
                                         {.plan = RedistributionOptions{.in_place = true}}));
    EXPECT_EQ(moved.local().shape(), moved.spec().local_shape);
    EXPECT_THAT(ToGlobal<float>(moved), IsOkAndHolds(testing::ElementsAre(2, 4, 6)));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
