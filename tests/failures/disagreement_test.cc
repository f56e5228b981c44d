// Ranks that request different things get an error that says what each of them requested, even if
// shapes and layouts are the same. Legal programs never get this error.
#include <functional>
#include <string>
#include <vector>

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
using Program = std::function<absl::Status(Context&)>;

DeviceMesh Mesh(absl::string_view text) { return DeviceMesh::Parse(text).value(); }

TensorOr Sharded(Context& context, int64_t n, double value = 1) {
  return Full(context, Mesh("tp=2"), {Shard(0)}, {n}, DType::kF32, value);
}

// What two ranks that disagree get.
std::string Disagreement(const Program& program) {
  const absl::Status status = RunRanks(2, program);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ranks disagree")));
  return std::string(status.message());
}

TEST(DisagreementTest, SaysWhatEachSideAskedFor) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const auto a, Sharded(context, 8));
                DT_ASSIGN_OR_RETURN(
                    const auto b, Full(context, Mesh("tp=2"), {Shard(1)}, {4, 6}, DType::kF64, 0));
                if (context.rank() == 0) return Add(a, a.Redistribute({Replicate()})).status();
                return b.Redistribute({Replicate()}).status();
              }),
              AllOf(HasSubstr("rank 0 makes op \"Redistribute\""),
                    HasSubstr("[8] f32 on [\"tp\"=2] from [tp] to []"),
                    HasSubstr("tensor 1 of its mesh, made by Full"),
                    HasSubstr("rank 1 makes op \"Redistribute\""),
                    HasSubstr("[4, 6] f64 on [\"tp\"=2] from [] [tp] to [] []"),
                    HasSubstr("tensor 2 of its mesh, made by Full")));
}

// What each rank makes of its own is as legal as what the other does, and their sum is nothing.
TEST(DisagreementTest, TensorsOfUnlikeShapesTypesOrLayouts) {
  const auto make = [](Context& context, const Placement& placement, const Dims& shape,
                       DType dtype) {
    return Full(context, Mesh("tp=2"), {placement}, shape, dtype, 1);
  };
  for (const auto& of : std::vector<std::function<TensorOr(Context&, bool)>>{
           [&](Context&c, bool one) {
             return make(c, Shard(0), {one ? 8 : 4, 6}, DType::kF32);
           },
           [&](Context&c, bool one) {
             return make(c, Shard(one ? 0 : 1), {4, 6}, DType::kF32);
           },
           [&](Context&c, bool one) {
             return Cast(make(c, Shard(0), {4, 6}, one ? DType::kBF16 : DType::kF64), DType::kF32);
           }}) {
    EXPECT_THAT(
        Disagreement([&](Context& context) -> absl::Status {
          DT_ASSIGN_OR_RETURN(const auto sum, Sum(of(context, context.rank() == 1), {0, 1}));
          return Item(sum).status();
        }),
        HasSubstr("a result of Sum"));
  }
}

TEST(DisagreementTest, TwoReadsInAnotherOrder) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const auto a, Sharded(context, 8, 1));
                DT_ASSIGN_OR_RETURN(const auto b, Sharded(context, 8, 2));
                const bool first = context.rank() == 0;
                DT_RETURN_IF_ERROR(ToGlobal<float>(first ? a : b).status());
                return ToGlobal<float>(first ? b : a).status();
              }),
              AllOf(HasSubstr("tensor 1 of its mesh"), HasSubstr("tensor 2 of its mesh")));
}

TEST(DisagreementTest, ResultsOfUnlikeOperators) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                const TensorOr a = Sharded(context, 8);
                const TensorOr y = context.rank() == 0 ? Add(a, a) : Mul(a, a);
                DT_RETURN_IF_ERROR(y.status());
                return ToGlobal<float>(*y).status();
              }),
              AllOf(HasSubstr("a result of Add"), HasSubstr("a result of Mul")));
}

TEST(DisagreementTest, UnlikeArguments) {
  for (const auto& of : std::vector<std::function<TensorOr(const TensorOr&, int)>>{
           [](const TensorOr&x, int rank) { return Scale(x, 2 + rank); },
           [](const TensorOr&x, int rank) { return RmsNorm(x, x, rank); },
           [](const TensorOr&x, int rank) { return Slice(x, 0, rank, rank + 3); },
           [](const TensorOr&x, int rank) {
             const std::vector<int64_t> rows = {0, rank};
             const NoGrad no_grad(x->context());
             return Rope(Reshape(x, {2, 2, 1, 2}), {.row_offsets = rows});
           }}) {
    EXPECT_THAT(Disagreement([&](Context& context) -> absl::Status {
                  DT_ASSIGN_OR_RETURN(const auto y, of(Sharded(context, 8), context.rank()));
                  DT_ASSIGN_OR_RETURN(const auto parts, y.Redistribute({Shard(0)}));
                  return ToGlobal<float>(parts).status();
                }),
                HasSubstr("these look alike"));
  }
}

// The operand that moves is the same, another one is not.
TEST(DisagreementTest, AnotherOperandOfTheSameOperator) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                const DeviceMesh mesh = Mesh("tp=2");
                const TensorOr x = Sharded(context, 8);
                TensorOr w[2];
                for (TensorOr& each : w) {
                  each = Full(context, mesh, {Replicate()}, {8}, DType::kF32, 1);
                  DT_RETURN_IF_ERROR(each.status());
                  each->set_pinned(true);
                }
                return RmsNorm(x, w[context.rank()], 1e-5).status();
              }),
              HasSubstr("RmsNorm"));
}

TEST(DisagreementTest, AsynchronousReads) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const auto a, Sharded(context, 8, 1));
                DT_ASSIGN_OR_RETURN(const auto b, Sharded(context, 8, 2));
                const DistributedTensor& mine = context.rank() == 0 ? a : b;
                DT_ASSIGN_OR_RETURN(const auto whole,
                                    mine.Redistribute({Replicate()}, {.async = true}));
                whole.local();
                return context.communicator().failure();
              }),
              HasSubstr("tensor 2 of its mesh"));
}

TEST(DisagreementTest, AReadBeforeAWriteAndOneAfterIt) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                DT_ASSIGN_OR_RETURN(const auto a, Sharded(context, 8));
                if (context.rank() == 0) DT_RETURN_IF_ERROR(ToGlobal<float>(a).status());
                DT_RETURN_IF_ERROR(BeforeWrite(a));
                return ToGlobal<float>(a).status();
              }),
              HasSubstr("these look alike"));
}

TEST(DisagreementTest, BackwardOfAnotherLoss) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                const DeviceMesh mesh = Mesh("tp=2");
                DT_ASSIGN_OR_RETURN(auto w,
                                    Full(context, mesh, {Replicate()}, {8}, DType::kF32, 1));
                DT_RETURN_IF_ERROR(w.set_requires_grad(true));
                const TensorOr y = Mul(Sharded(context, 8), w);
                const TensorOr losses[] = {Sum(y, {0}), Sum(Scale(y, 2), {0})};
                DT_RETURN_IF_ERROR(Backward(losses[context.rank()]));
                const DistributedTensor leaves[] = {w};
                return ReduceGradients(leaves);
              }),
              HasSubstr("ReduceGradients"));
}

TEST(DisagreementTest, AttentionInARing) {
  EXPECT_THAT(Disagreement([](Context& context) -> absl::Status {
                const DeviceMesh mesh = Mesh("cp=2");
                TensorOr k[2];
                for (TensorOr& each : k) {
                  each = Full(context, mesh, {Shard(1)}, {1, 8, 1, 4}, DType::kF32, 1);
                }
                const TensorOr& mine = k[context.rank()];
                return Attention(k[0], mine, mine, {.plan = AttentionPlanKind::kRing}).status();
              }),
              AllOf(HasSubstr("\"Attention\""), HasSubstr("queries [cp] of 8, keys [cp] of 8")));
}

// --- Legal programs.

TEST(DisagreementTest, WorkOfOneRankAloneIsItsOwn) {
  const auto program = [](Context& context) -> absl::Status {
    const DeviceMesh pair = Mesh("tp=2").OnRanks({0, 2}).value();
    const auto make = [&](const DeviceMesh& mesh) {
      return Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1);
    };
    for (int i = 0; context.rank() > 0 && i < 2 + context.rank(); ++i) {
      const DeviceMesh alone = Mesh("one=1").OnRanks({context.rank()}).value();
      DT_ASSIGN_OR_RETURN(const auto own, Scale(make(alone), i));
      DT_RETURN_IF_ERROR(ToGlobal<float>(own).status());
    }
    DT_ASSIGN_OR_RETURN(const auto a, make(pair));
    if (!pair.Contains(context.rank())) return absl::OkStatus();
    DT_ASSIGN_OR_RETURN(const auto b, Add(a, make(pair)));
    DT_RETURN_IF_ERROR(ToGlobal<float>(a).status());
    return ToGlobal<float>(b).status();
  };
  EXPECT_THAT(RunRanks(3, program), IsOk());
}

// Ranks of the target's mesh know the source by a stand-in, and have made less on its mesh.
TEST(DisagreementTest, ATensorThatMovesToAnotherMesh) {
  const auto program = [](Context& context) -> absl::Status {
    const DeviceMesh first = Mesh("a=2").OnRanks({1, 2}).value();
    const DeviceMesh second = Mesh("b=2").OnRanks({2, 3}).value();
    const auto on_first = [&](double value) {
      return Full(context, first, {Shard(0)}, {8}, DType::kF32, value);
    };
    TensorOr x = on_first(1);
    if (first.Contains(context.rank())) {
      x = Add(x, on_first(2));
      DT_RETURN_IF_ERROR(ToGlobal<float>(*x).status());
    }
    if (context.rank() == 0) return absl::OkStatus();
    for (bool async : {false, true}) {
      DT_ASSIGN_OR_RETURN(const Layout target, Layout::FromPlacements(second, {Shard(0)}, {8}));
      DT_ASSIGN_OR_RETURN(const auto moved, x->Redistribute(target, {.async = async}));
      if (!second.Contains(context.rank())) continue;
      DT_ASSIGN_OR_RETURN(const auto values, ToGlobal<float>(*Scale(moved, 2)));
      EXPECT_THAT(values, testing::Each(6));
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(4, program), IsOk());
}

TEST(DisagreementTest, TwoContextsOfOneRank) {
  EXPECT_THAT(RunRanks(2,
                       [](Context& context) -> absl::Status {
                         Context other(context.communicator(), context.device());
                         DT_ASSIGN_OR_RETURN(const auto a, Sharded(context, 8));
                         DT_ASSIGN_OR_RETURN(const auto b, Sharded(other, 8));
                         DT_ASSIGN_OR_RETURN(const auto c, Sharded(other, 8));
                         DT_RETURN_IF_ERROR(ToGlobal<float>(c).status());
                         DT_RETURN_IF_ERROR(ToGlobal<float>(a).status());
                         return ToGlobal<float>(b).status();
                       }),
              IsOk());
}

// What a rank does beside its collectives does not count: looking at metadata and local data,
// refused calls, recording, aliases, what is in caches.
TEST(DisagreementTest, WhatMovesNothingMayDiffer) {
  EXPECT_THAT(
      RunRanks(2,
               [](Context& context) -> absl::Status {
                 DT_ASSIGN_OR_RETURN(auto w, Sharded(context, 8));
                 DT_RETURN_IF_ERROR(w.set_requires_grad(true));
                 const bool first = context.rank() == 0;
                 if (first) {
                   context.set_recording(false);
                   EXPECT_FALSE(Reshape(w, {7}).ok());
                   EXPECT_FALSE(Full(context, Mesh("tp=2"), {Shard(3)}, {8}, DType::kF32, 0).ok());
                   DT_RETURN_IF_ERROR(Scale(w, 7).status());
                 }
                 DT_ASSIGN_OR_RETURN(const auto y, Scale(first ? w.Detach() : w, 2));
                 DT_RETURN_IF_ERROR(ToGlobal<float>(y).status());
                 return ToGlobal<float>(w).status();
               }),
      IsOk());
}

}  // namespace
}  // namespace dtensor
