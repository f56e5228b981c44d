// Attention as an operator: every method gives the result of one rank.
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/attention_cases.h"
#include "dtensor/testing/op_cases.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {
namespace {

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(3).value(),
          AttentionMask::Prefix(2).value(), AttentionMask::Documents({0, 5, 7}).value()};
}

TEST(Attention, EveryPlacementAndMaskGivesWhatOneRankGives) {
  for (const AttentionMask& mask : Masks()) {
    const AttentionDoubles want = OneRank({.options = {.mask = mask}});
    for (const Placed& p : kPlaced) {
      for (const AttentionPlanKind kind :
           {AttentionPlanKind::kRing, AttentionPlanKind::kGather, AttentionPlanKind::kAutomatic}) {
        Case c = {p.mesh, p.q, p.kv, {.mask = mask, .plan = kind}};
        ExpectSame(RunOn(c), want, 1e-13, Describe(c));
        if (kind != AttentionPlanKind::kRing) continue;
        c.dtype = DType::kF32;
        ExpectSame(RunOn(c), want, 3e-6, Describe(c));
      }
    }
  }
}

TEST(Attention, AllToAllOverSomeAxesOrAll) {
  for (const AttentionMask& mask : Masks()) {
    const AttentionDoubles want = OneRank({.options = {.mask = mask}});
    for (const char* axes : {"", "u", "r", "u,r", "r,u"}) {
      const Case c = {"u=2,r=2",
                      "[] [u:zigzag,r] [] []",
                      "[] [u,r] [] []",
                      {.mask = mask, .plan = AttentionPlanKind::kAllToAll, .all_to_all = axes}};
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
    const Case c = {"cp=2,tp=2",
                    "[] [cp:zigzag] [tp] []",
                    "[] [cp:zigzag] [tp] []",
                    {.mask = mask, .plan = AttentionPlanKind::kAllToAll}};
    ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    for (const char* axes : {"u", "u,one", "one"}) {  // axes of size 1 split nothing
      const Case one = {"u=2,one=1",
                        "[] [u] [] []",
                        "[] [u] [] []",
                        {.mask = mask, .plan = AttentionPlanKind::kAllToAll, .all_to_all = axes}};
      ExpectSame(RunOn(one), want, 1e-13, Describe(one));
    }
  }
}

// As a model with a window of 4096 positions meets a short text.
TEST(Attention, AWindowLongerThanTheSequenceIsCausal) {
  const AttentionDoubles want = OneRank({.options = {.mask = AttentionMask::Causal()}});
  for (const int64_t width : {12, 4096}) {
    const AttentionMask window = AttentionMask::Window(width).value();
    ExpectSame(OneRank({.options = {.mask = window}}), want, 0, absl::StrCat("window of ", width));
    for (const AttentionPlanKind kind : {AttentionPlanKind::kRing, AttentionPlanKind::kGather}) {
      const Case c = {kPlaced[1].mesh, kPlaced[1].q, kPlaced[1].kv, {.mask = window, .plan = kind}};
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
  }
}

// More queries than keys, fewer, uneven, fewer than ranks, none.
TEST(Attention, UnlikeAndUnevenLengths) {
  for (const auto& [s, t] : std::vector<std::pair<int64_t, int64_t>>{
           {5, 12}, {12, 5}, {1, 7}, {2, 2}, {7, 7}, {0, 3}, {3, 0}}) {
    for (const AttentionMask& mask : {AttentionMask::Full(), AttentionMask::Causal()}) {
      Case c;
      c.shapes.s = s;
      c.shapes.t = t;
      c.options.mask = mask;
      const AttentionDoubles want = OneRank(c);
      for (const Placed& p : {kPlaced[1], kPlaced[2], kPlaced[3], kPlaced[9], kPlaced[10]}) {
        c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
        c.options.plan = AttentionPlanKind::kRing;
        ExpectSame(RunOn(c), want, 1e-13, Describe(c));
      }
    }
  }
}

// Ranks hold unlike numbers of heads, and some none.
TEST(Attention, HeadsThatRanksDoNotShareEvenly) {
  for (const int tp : {2, 4}) {
    Case c = {absl::StrCat("cp=2,tp=", tp), "[] [cp] [tp] []", "[] [cp] [tp] []", {}};
    c.shapes.heads = 6;
    c.shapes.kv_heads = 3;
    const AttentionDoubles want = OneRank(c);
    for (const AttentionPlanKind kind :
         {AttentionPlanKind::kRing, AttentionPlanKind::kGather, AttentionPlanKind::kAutomatic}) {
      c.options.plan = kind;
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
  }
}

TEST(Attention, RowsThatSeeNothing) {
  // 12 queries and 4 keys that end together: the first 8 see none.
  Case c = {"cp=3", "[] [cp] [] []", "[] [cp] [] []", {.plan = AttentionPlanKind::kRing}};
  c.shapes.t = 4;
  const AttentionDoubles got = RunOn(c);
  const int64_t width = c.shapes.heads * c.shapes.head_dim;
  for (int64_t i = 0; i < 8 * width; ++i) {
    EXPECT_EQ(got.o[i], 0);
    EXPECT_EQ(got.dq[i], 0);
  }
  EXPECT_EQ(got.lse[0], -INFINITY);
  ExpectSame(got, OneRank(c), 1e-13, Describe(c));
}

TEST(Attention, OneRankHasTheBitsOfTheLocalOperator) {
  Case c = {"cp=1", "[] [cp] [] []", "[] [cp] [] []", {}};
  c.dtype = DType::kF32;
  const AttentionDoubles ring = RunOn(c);
  c.mesh = "one=1", c.q = c.kv = "[] [] [] []";
  const AttentionDoubles local = RunOn(c);
  EXPECT_EQ(ring.o, local.o);
  EXPECT_EQ(ring.lse, local.lse);
  EXPECT_EQ(ring.dq, local.dq);
  EXPECT_EQ(ring.dk, local.dk);
  EXPECT_EQ(ring.dv, local.dv);
}

// Of every way and placement the same weights are dropped; another seed drops others, and is no
// other call for the dispatcher.
TEST(Attention, DropsTheSameWeightsOnEveryMesh) {
  const AttentionOptions options = {.dropout = 0.4, .dropout_seed = 5};
  const AttentionDoubles want = OneRank({.options = options});
  for (const Placed& p : kPlaced) {
    for (const AttentionPlanKind kind : {AttentionPlanKind::kRing, AttentionPlanKind::kGather}) {
      Case c = {p.mesh, p.q, p.kv, options};
      c.options.plan = kind;
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
  }
  Case c = {"u=2,r=2", "[] [u:zigzag,r] [] []", "[] [u,r] [] []", options};
  c.options.plan = AttentionPlanKind::kAllToAll;
  for (const char* axes : {"", "u"}) {
    c.options.all_to_all = axes;
    ExpectSame(RunOn(c), want, 1e-13, Describe(c));
  }
  Case other = {.options = options}, none = {};
  other.options.dropout_seed = 6;
  EXPECT_NE(OneRank(other).o, want.o);
  EXPECT_NE(OneRank(none).o, want.o);
  EXPECT_EQ(OneRank(none).lse, want.lse);
}

// Backward drops what its own forward dropped, whatever was called in between: o is linear in v, so
// that the loss is the product of v and its gradient.
TEST(Attention, BackwardHasTheSeedOfItsForward) {
  const Case c = {"cp=2", "[] [cp] [] []", "[] [cp] [] []", {.dropout = 0.4, .dropout_seed = 5}};
  DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    DT_ASSIGN_OR_RETURN(const DistributedTensor o, Attention(in.q, in.k, in.v, c.options));
    AttentionOptions other = c.options;
    other.dropout_seed = 6;
    DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, other).status());
    const TensorOr weights = Place(context, Layout::Replicated(in.q.mesh(), 4), c.shapes.q(),
                                   c.dtype, Values(c.shapes.q(), 4), 4);
    DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Sum(Mul(o, weights), {0, 1, 2, 3}));
    DT_RETURN_IF_ERROR(Backward(loss));
    DT_ASSIGN_OR_RETURN(const double wanted, Item(loss.Detach()));
    DT_ASSIGN_OR_RETURN(const Doubles dv, GlobalValues(in.v.grad()));
    const Doubles v = Values(c.shapes.kv(), 3);
    EXPECT_NEAR(std::inner_product(v.begin(), v.end(), dv.begin(), 0.0), wanted, 1e-11);
    return absl::OkStatus();
  }));
}

// [b, h, s, d], [s, b, h, d] and [b, s, d, h] are transposed views of [b, s, h, d]. Of one
// position, rank 1 has an empty view.
TEST(Attention, OtherOrdersOfDimensions) {
  for (const auto& [a, b, length] :
       std::vector<std::array<int, 3>>{{1, 2, 12}, {0, 1, 12}, {2, 3, 12}, {2, 3, 1}}) {
    Case c = {"cp=2", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
    c.shapes.s = c.shapes.t = length;
    const AttentionDoubles want = OneRank(c);
    for (const AttentionPlanKind kind : {AttentionPlanKind::kRing, AttentionPlanKind::kAllToAll}) {
      AttentionDoubles got;
      DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(Operands in, MakeOperands(context, c));
        // Leaves in the other order, made by copying.
        Operands stored;
        for (DistributedTensor Operands::*x : {&Operands::q, &Operands::k, &Operands::v}) {
          const NoGrad no_grad(context);
          DT_ASSIGN_OR_RETURN(stored.*x, Scale(Transpose(in.*x, a, b), 1));
          DT_RETURN_IF_ERROR((stored.*x).set_requires_grad(true));
        }
        AttentionOptions options = c.options;
        options.plan = kind;
        const TensorOr o = Transpose(Attention(Transpose(stored.q, a, b), Transpose(stored.k, a, b),
                                               Transpose(stored.v, a, b), options),
                                     a, b);
        const TensorOr weights = Transpose(Place(context, Layout::Replicated(in.q.mesh(), 4),
                                                 c.shapes.q(), c.dtype, Values(c.shapes.q(), 4), 4),
                                           a, b);
        DT_RETURN_IF_ERROR(Backward(Sum(Mul(o, weights), {0, 1, 2, 3})));
        const auto back = [&](const TensorOr& x) -> absl::StatusOr<Doubles> {
          const NoGrad no_grad(context);
          DT_ASSIGN_OR_RETURN(const DistributedTensor y, Transpose(x, a, b));
          return GlobalValues(y);
        };
        AttentionDoubles mine;
        DT_ASSIGN_OR_RETURN(mine.o, back(o));
        DT_ASSIGN_OR_RETURN(mine.dq, back(stored.q.grad()));
        DT_ASSIGN_OR_RETURN(mine.dk, back(stored.k.grad()));
        DT_ASSIGN_OR_RETURN(mine.dv, back(stored.v.grad()));
        mine.lse = want.lse;
        if (context.rank() == 0) got = std::move(mine);
        return absl::OkStatus();
      }));
      ExpectSame(got, want, 1e-13, absl::StrCat("transposed ", a, " ", b, " of ", length));
    }
  }
}

}  // namespace
}  // namespace dtensor::attention_testing
