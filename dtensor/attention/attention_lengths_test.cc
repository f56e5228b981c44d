// Attention to as many keys as each batch entry has: by every method it is attention to those keys
// alone, and the others get no gradient.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/testing/reference_attention.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/attention_cases.h"
#include "dtensor/testing/op_cases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Fewer queries than keys, and more: both sequences end together.
constexpr Shapes kShapes = {.batch = 4, .s = 6, .t = 12};
constexpr Shapes kMoreQueries = {.batch = 4, .s = 12, .t = 7};

std::vector<int64_t> LengthsOf(const Shapes& shapes) { return {5, 0, 5, shapes.t}; }

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(4).value()};
}

Case With(const AttentionMask& mask, const Shapes& shapes = kShapes) {
  return {.options = {.mask = mask}, .shapes = shapes, .key_lengths = LengthsOf(shapes)};
}

// Entry b of [batch, ...], of `from` rows of `width` numbers the first `to`.
Doubles Part(const Doubles& all, int64_t b, int64_t from, int64_t to, int64_t width) {
  const auto begin = all.begin() + b * from * width;
  return Doubles(begin, begin + to * width);
}

// Entry b of `got`, over the keys that it has.
void ExpectReference(const Case& c, const AttentionDoubles& got, int64_t b) {
  const Shapes& n = c.shapes;
  const int64_t keys = c.key_lengths[b], ahead = std::max<int64_t>(0, n.t - n.s);
  const int64_t behind = std::max<int64_t>(0, n.s - n.t);
  const int64_t q_width = n.heads * n.head_dim, kv_width = n.kv_heads * n.head_dim;
  const ReferenceProblem problem = {.heads = n.heads,
                                    .kv_heads = n.kv_heads,
                                    .head_dim = n.head_dim,
                                    .q_positions = IndexSet::Interval(ahead, ahead + n.s),
                                    .k_positions = IndexSet::Interval(behind, behind + keys),
                                    .mask = c.options.mask,
                                    .scale = .5L};  // 1/sqrt(4)
  const auto of_queries = [&](const Doubles& all) { return Part(all, b, n.s, n.s, q_width); };
  const auto of_keys = [&](const Doubles& all) { return Part(all, b, n.t, keys, kv_width); };
  const AttentionReference want =
      ReferenceAttention(problem, {of_queries(Values(n.q(), 1)), of_keys(Values(n.kv(), 2)),
                                   of_keys(Values(n.kv(), 3)), of_queries(Values(n.q(), 4))});
  const AttentionDoubles mine = {of_queries(got.o), Part(got.lse, b, n.heads, n.heads, n.s),
                                 of_queries(got.dq), of_keys(got.dk), of_keys(got.dv)};
  for (const double error : RelativeErrors(mine, want)) {
    EXPECT_LE(error, 1e-13) << Describe(c) << " entry " << b;
  }
  for (const Doubles* const gradient : {&got.dk, &got.dv}) {
    const auto end = gradient->begin() + (b + 1) * n.t * kv_width;
    EXPECT_THAT(Doubles(end - (n.t - keys) * kv_width, end), Each(0));
  }
}

TEST(AttentionLengths, OneRankGivesTheReferenceOfTheKeysThatThereAre) {
  for (const Shapes& shapes : {kShapes, kMoreQueries}) {
    for (const AttentionMask& mask : Masks()) {
      const Case c = With(mask, shapes);
      const AttentionDoubles got = OneRank(c);
      for (int64_t b = 0; b < shapes.batch; ++b) ExpectReference(c, got, b);
    }
  }
}

TEST(AttentionLengths, EveryPlacementAndPlanGivesWhatOneRankGives) {
  for (const AttentionMask& mask : Masks()) {
    for (const Shapes& shapes : {kShapes, kMoreQueries}) {
      const AttentionDoubles want = OneRank(With(mask, shapes));
      for (const Placed& p : kPlaced) {
        for (const AttentionPlanKind kind :
             {AttentionPlanKind::kRing, AttentionPlanKind::kGather}) {
          Case c = With(mask, shapes);
          c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
          c.options.plan = kind;
          ExpectSame(RunOn(c), want, 1e-13, Describe(c), /*least=*/.5);
          ExpectPredicted(c);
        }
      }
    }
    const AttentionDoubles want = OneRank(With(mask));
    Case c = With(mask);
    c.mesh = "u=2,r=2", c.q = "[] [u:zigzag,r] [] []", c.kv = "[] [u,r] [] []";
    c.options.plan = AttentionPlanKind::kAllToAll;
    c.options.all_to_all = "u";
    c.lengths = "[r]";
    ExpectSame(RunOn(c), want, 1e-13, Describe(c), /*least=*/.5);
  }
}

TEST(AttentionLengths, DropsTheSameWeightsOnEveryMesh) {
  Case c = With(AttentionMask::Full());
  c.options.dropout = .4;
  const AttentionDoubles want = OneRank(c);
  for (const Placed& p : kPlaced) {
    c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
    ExpectSame(RunOn(c), want, 1e-13, Describe(c));
  }
}

// A length counts keys, wherever their positions begin.
TEST(AttentionLengths, DependOnNoOffset) {
  Case c = With(AttentionMask::Full(), kMoreQueries);
  const AttentionDoubles want = OneRank(c);
  for (const int64_t offset : {0, 3}) {
    c.options.query_offset = offset;
    ExpectSame(OneRank(c), want, 1e-15, Describe(c));
  }
}

// What stands behind an entry's keys, is not read at all.
TEST(AttentionLengths, ReadsNothingBehindThem) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), 4), row = Layout::Replicated({}, 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    DT_ASSIGN_OR_RETURN(auto q, Full(context, whole, {2, 1, 1, 2}, DType::kF64, 1));
    DT_RETURN_IF_ERROR(q.set_requires_grad(true));
    DT_ASSIGN_OR_RETURN(const auto kv, Distribute<double>(context, whole, {2, 2, 1, 2},
                                                          {1, 2, nan, nan, 3, 4, 3, 4}));
    AttentionOptions options = {.mask = AttentionMask::Full()};
    DT_ASSIGN_OR_RETURN(options.key_lengths, Distribute<int32_t>(context, row, {2}, {1, 2}));
    DT_ASSIGN_OR_RETURN(const auto o, Attention(q, kv, kv, options));
    DT_ASSIGN_OR_RETURN(const Doubles values, GlobalValues(o));
    EXPECT_THAT(values, testing::ElementsAre(1, 2, 3, 4));
    DT_RETURN_IF_ERROR(Backward(Sum(o, {0, 1, 2, 3})));
    DT_ASSIGN_OR_RETURN(const Doubles gradient, GlobalValues(q.grad()));
    EXPECT_THAT(gradient, Each(0));
    return absl::OkStatus();
  }));
}

TEST(AttentionLengths, TakeNoNewDecision) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), 4), row = Layout::Replicated({}, 1);
    DT_ASSIGN_OR_RETURN(const auto q, Full(context, whole, {2, 4, 1, 2}, DType::kF32, 1));
    size_t decisions = 0;
    for (const int64_t length : {1, 4, 0}) {
      AttentionOptions options;
      DT_ASSIGN_OR_RETURN(options.key_lengths, Distribute<int64_t>(context, row, {2}, {length, 3}));
      DT_RETURN_IF_ERROR(Attention(q, q, q, options).status());
      if (length != 1) {
        EXPECT_EQ(context.cache_sizes().decisions, decisions);
      }
      decisions = context.cache_sizes().decisions;
    }
    return absl::OkStatus();
  }));
}

TEST(AttentionLengths, RefusesWhatFitsNoBatch) {
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const Layout whole = Layout::Replicated(DeviceMesh(), 4), row = Layout::Replicated({}, 1);
    DT_ASSIGN_OR_RETURN(const auto q, Full(context, whole, {2, 4, 1, 2}, DType::kF32, 1));
    const auto with = [&](const TensorOr& lengths) {
      AttentionOptions options;
      options.key_lengths = lengths.value();
      return Attention(q, q, q, options).status();
    };
    EXPECT_THAT(with(Full(context, row, {3}, DType::kI64, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("Attention: key_lengths are [3] i64"),
                               HasSubstr("give one for each of the 2 batch entries"))));
    EXPECT_THAT(with(Full(context, row, {2}, DType::kF32, 1)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Attention: takes")));
    return absl::OkStatus();
  }));
}

// On every rank, also on those whose own entries are right.
TEST(AttentionLengths, ALengthThatIsNoneEndsTheWorld) {
  for (const int64_t wrong : {-1, 5}) {
    std::vector<absl::Status> seen(2);
    RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
      DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(mesh, "[dp] [] [] []"));
      const Layout row = Layout::Replicated(mesh, 1);
      DT_ASSIGN_OR_RETURN(const auto q, Full(context, layout, {2, 4, 1, 2}, DType::kF32, 1));
      AttentionOptions options;
      DT_ASSIGN_OR_RETURN(options.key_lengths, Distribute<int64_t>(context, row, {2}, {3, wrong}));
      const TensorOr o = Attention(q, q, q, options);
      seen[context.rank()] = o.ok() ? ToGlobal<float>(*o).status() : o.status();
      return seen[context.rank()];
    }).IgnoreError();
    for (const absl::Status& status : seen) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                   HasSubstr(absl::StrCat("the length of the keys, ", wrong,
                                                          " at position 1 is outside [0, 5)"))));
    }
  }
}

}  // namespace
}  // namespace dtensor::attention_testing
