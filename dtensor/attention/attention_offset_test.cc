// Attention whose queries begin at a position given by the caller: every method of attention
// respects it.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/attention_cases.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Shapes kShapes = {.s = 5, .t = 12};

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(3).value(),
          AttentionMask::Prefix(2).value(), AttentionMask::Documents({0, 5, 7}).value()};
}

Case At(const AttentionMask& mask, int64_t offset) {
  return {.options = {.mask = mask, .query_offset = offset}, .shapes = kShapes};
}

// In front of the cache's end, at it, and behind it.
constexpr int64_t kOffsets[] = {0, 4, 7, 15};

TEST(AttentionOffset, OneRankGivesTheReference) {
  for (const AttentionMask& mask : Masks()) {
    for (const int64_t offset : kOffsets) {
      const ReferenceProblem problem = {
          .batch = kShapes.batch,
          .heads = kShapes.heads,
          .kv_heads = kShapes.kv_heads,
          .head_dim = kShapes.head_dim,
          .q_positions = IndexSet::Interval(offset, offset + kShapes.s),
          .k_positions = IndexSet::Interval(0, kShapes.t),
          .mask = mask,
          .scale = .5L};  // 1/sqrt(4)
      const AttentionReference want =
          ReferenceAttention(problem, {Values(kShapes.q(), 1), Values(kShapes.kv(), 2),
                                       Values(kShapes.kv(), 3), Values(kShapes.q(), 4)});
      const Case c = At(mask, offset);
      for (const double error : RelativeErrors(OneRank(c), want)) {
        EXPECT_LE(error, 1e-13) << Describe(c);
      }
    }
  }
}

TEST(AttentionOffset, EveryPlacementAndPlanGivesWhatOneRankGives) {
  for (const AttentionMask& mask : {AttentionMask::Causal(), AttentionMask::Window(3).value(),
                                    AttentionMask::Documents({0, 5, 7}).value()}) {
    for (const int64_t offset : {0, 4, 15}) {
      const AttentionDoubles want = OneRank(At(mask, offset));
      for (const Placed& p : kPlaced) {
        for (const AttentionPlanKind kind :
             {AttentionPlanKind::kRing, AttentionPlanKind::kGather}) {
          Case c = At(mask, offset);
          c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
          c.options.plan = kind;
          ExpectSame(RunOn(c), want, 1e-13, Describe(c), /*least=*/.5);
        }
      }
      for (const char* axes : {"", "u", "r"}) {
        Case c = At(mask, offset);
        c.mesh = "u=2,r=2", c.q = "[] [u:zigzag,r] [] []", c.kv = "[] [u,r] [] []";
        c.options.plan = AttentionPlanKind::kAllToAll;
        c.options.all_to_all = axes;
        ExpectSame(RunOn(c), want, 1e-13, Describe(c), /*least=*/.5);
      }
    }
  }
}

// Weights that dropout takes away are those of the positions.
TEST(AttentionOffset, DropsTheSameWeightsOnEveryMesh) {
  Case c = At(AttentionMask::Causal(), 4);
  c.options.dropout = .4;
  const AttentionDoubles want = OneRank(c);
  for (const Placed& p : kPlaced) {
    c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
    ExpectSame(RunOn(c), want, 1e-13, Describe(c));
  }
}

TEST(AttentionOffset, WithoutOneBothSequencesEndTogether) {
  for (const Placed& p : kPlaced) {
    Case c = At(AttentionMask::Causal(), kShapes.t - kShapes.s);
    c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
    const AttentionDoubles given = RunOn(c);
    c.options.query_offset.reset();
    EXPECT_EQ(RunOn(c), given) << Describe(c);
  }
}

// Token by token against a cache that is as long as it will ever be: what the whole sequence gives
// at once. Steps share a decision wherever the cache is split, for the one query is whole.
TEST(AttentionOffset, DecodesWithACacheOfFixedLength) {
  constexpr int64_t kLength = 6;
  const Shapes shapes = {.s = kLength, .t = kLength};
  for (const char* kv_text : {"[] [] [] []", "[] [cp] [] []", "[cp] [] [] []", "[] [] [cp] []"}) {
    DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      const NoGrad no_grad(context);
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("cp=2"));
      DT_ASSIGN_OR_RETURN(const Layout kv, Layout::Parse(mesh, kv_text));
      const auto make = [&](const Layout& layout, const Dims& shape, int seed) {
        return Place(context, layout, shape, DType::kF64, Values(shape, seed), seed);
      };
      const Layout whole = Layout::Replicated(mesh, 4);
      const TensorOr q = make(whole, shapes.q(), 1), k = make(kv, shapes.kv(), 2),
                     v = make(kv, shapes.kv(), 3);
      const TensorOr at_once = Attention(q, k, v, {});
      DT_RETURN_IF_ERROR(at_once.status());
      size_t decisions = 0;
      for (int64_t i = 0; i < kLength; ++i) {
        const TensorOr token = Slice(q, 1, i, i + 1);
        const TensorOr o = Attention(token, k, v, {.query_offset = i});
        DT_RETURN_IF_ERROR(o.status());
        if (i > 0) {
          EXPECT_EQ(context.cache_sizes().decisions, decisions) << kv_text;
        }
        decisions = context.cache_sizes().decisions;
        DT_ASSIGN_OR_RETURN(const Doubles got, GlobalValues(*o));
        for (int64_t b = 0; b < shapes.batch; ++b) {
          DT_ASSIGN_OR_RETURN(const Doubles all, GlobalValues(*at_once));
          const int64_t width = shapes.heads * shapes.head_dim;
          for (int64_t e = 0; e < width; ++e) {
            EXPECT_NEAR(got[b * width + e], all[(b * kLength + i) * width + e], 1e-13);
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(AttentionOffset, RefusesPositionsThatThereAreNot) {
  const auto refused = [](const AttentionMask& mask, int64_t offset) {
    return TryOn({.mesh = "one=1",
                  .q = "[] [] [] []",
                  .kv = "[] [] [] []",
                  .options = {.mask = mask, .query_offset = offset},
                  .shapes = kShapes})
        .status();
  };
  constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused(AttentionMask::Causal(), -1),
              StatusIs(kInvalidArgument, AllOf(HasSubstr("query_offset is -1"),
                                               HasSubstr("[2, 5, 8, 4]"), HasSubstr("0 to 2^31"))));
  EXPECT_THAT(refused(AttentionMask::Causal(), (int64_t{1} << 31) + 1),
              StatusIs(kInvalidArgument, HasSubstr("0 to 2^31")));
  // The mask speaks of position 20, and the last query is at 19.
  const AttentionMask late = AttentionMask::Documents({0, 20}).value();
  EXPECT_THAT(refused(late, 15), StatusIs(kInvalidArgument, HasSubstr("20 positions")));
  DT_EXPECT_OK(refused(late, 16));
}

// Offsets of batch entries move queries on from there: it may not lie in front of them either.
TEST(AttentionOffset, RowOffsetsDoNotHideAPositionThatThereIsNot) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    Case c = {.mesh = "one=1", .q = "[] [] [] []", .kv = "[] [] [] []", .shapes = kShapes};
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    for (const AttentionMask& mask : Masks()) {
      const auto at = [&](int64_t offset, const std::vector<int64_t>& rows) {
        return Attention(in.q, in.k, in.v,
                         {.mask = mask, .query_offset = offset, .row_offsets = rows})
            .status();
      };
      DT_RETURN_IF_ERROR(at(2, {7, 0}));
      for (const int64_t bad : {int64_t{-5}, kLowest, kHighest}) {
        EXPECT_THAT(at(bad, {7, 0}),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr(absl::StrCat("query_offset is ", bad)),
                                   HasSubstr("0 to 2^31"))));
      }
      for (const int64_t bad : {int64_t{-5}, kHighest}) {
        EXPECT_THAT(at(2, {7, bad}),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 to 2^31")));
      }
    }
    return absl::OkStatus();
  }));
}

// Pairs of them are counted.
TEST(Attention, RefusesMorePositionsThanThereMayBe) {
  DT_EXPECT_OK(Simulate(0, 1, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                        Full(context, Layout::Replicated(DeviceMesh(), 4),
                             {1, (int64_t{1} << 31) + 1, 1, 1}, DType::kBF16, 0));
    EXPECT_THAT(Attention(x, x, x, {}), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("positions are more than 2^31")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor::attention_testing
