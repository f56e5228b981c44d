// Attention to as many keys as each batch entry has: by every method it is attention to those keys
// alone, and the others get no gradient.
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

constexpr Shapes kShapes = {.batch = 4, .s = 6, .t = 12};
const std::vector<int64_t>& Lengths() {
  static const auto* const lengths = new std::vector<int64_t>{7, 0, 7, 12};
  return *lengths;
}

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(4).value()};
}

Case With(const AttentionMask& mask) {
  return {.options = {.mask = mask}, .shapes = kShapes, .key_lengths = Lengths()};
}

// Entry b of [batch, ...], of `from` rows of `width` numbers the first `to`.
Doubles Part(const Doubles& all, int64_t b, int64_t from, int64_t to, int64_t width) {
  const auto begin = all.begin() + b * from * width;
  return Doubles(begin, begin + to * width);
}

TEST(AttentionLengths, OneRankGivesTheReferenceOfTheKeysThatThereAre) {
  const int64_t q_width = kShapes.heads * kShapes.head_dim;
  const int64_t kv_width = kShapes.kv_heads * kShapes.head_dim;
  for (const AttentionMask& mask : Masks()) {
    const AttentionDoubles got = OneRank(With(mask));
    for (int64_t b = 0; b < kShapes.batch; ++b) {
      const int64_t n = Lengths()[b], s = kShapes.s, t = kShapes.t;
      const ReferenceProblem problem = {.heads = kShapes.heads,
                                        .kv_heads = kShapes.kv_heads,
                                        .head_dim = kShapes.head_dim,
                                        .q_positions = IndexSet::Interval(t - s, t),
                                        .k_positions = IndexSet::Interval(0, n),
                                        .mask = mask,
                                        .scale = .5L};  // 1/sqrt(4)
      const AttentionReference want =
          ReferenceAttention(problem, {Part(Values(kShapes.q(), 1), b, s, s, q_width),
                                       Part(Values(kShapes.kv(), 2), b, t, n, kv_width),
                                       Part(Values(kShapes.kv(), 3), b, t, n, kv_width),
                                       Part(Values(kShapes.q(), 4), b, s, s, q_width)});
      const AttentionDoubles mine = {
          Part(got.o, b, s, s, q_width), Part(got.lse, b, kShapes.heads, kShapes.heads, s),
          Part(got.dq, b, s, s, q_width), Part(got.dk, b, t, n, kv_width),
          Part(got.dv, b, t, n, kv_width)};
      for (const double error : RelativeErrors(mine, want)) {
        EXPECT_LE(error, 1e-13) << mask.ToString() << " entry " << b;
      }
      for (const Doubles* const gradient : {&got.dk, &got.dv}) {
        const auto end = gradient->begin() + (b + 1) * t * kv_width;
        EXPECT_THAT(Doubles(end - (t - n) * kv_width, end), Each(0));
      }
    }
  }
}

TEST(AttentionLengths, EveryPlacementAndPlanGivesWhatOneRankGives) {
  for (const AttentionMask& mask : Masks()) {
    const AttentionDoubles want = OneRank(With(mask));
    for (const Placed& p : kPlaced) {
      for (const AttentionPlanKind kind : {AttentionPlanKind::kRing, AttentionPlanKind::kGather}) {
        Case c = With(mask);
        c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
        c.options.plan = kind;
        ExpectSame(RunOn(c), want, 1e-13, Describe(c), /*least=*/.5);
        ExpectPredicted(c);
      }
    }
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
