// Attention as an operator: every way to carry it out gives what one rank gives, moves what it
// says, and is predicted by the same program without data.
#include <array>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd.h"
#include "dtensor/dispatch.h"
#include "dtensor/op_cases.h"
#include "dtensor/ops.h"
#include "dtensor/ops_internal.h"
#include "dtensor/runtime/core/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Doubles = std::vector<double>;

struct Shapes {
  int64_t batch = 2, s = 12, t = 12, heads = 8, kv_heads = 4, head_dim = 4;
  Dims q() const { return {batch, s, heads, head_dim}; }
  Dims kv() const { return {batch, t, kv_heads, head_dim}; }
};

struct Case {
  std::string mesh, q, kv;  // layouts
  AttentionOptions options;
  Shapes shapes;
  DType dtype = DType::kF64;
};

// Global values.
struct Outcome {
  Doubles o, lse, dq, dk, dv;
};

Doubles Values(const Dims& shape, int seed) {
  Doubles values(NumElements(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(TestHash(seed, i, 0) >> 40) * 0x1p-23 - 1;
  }
  return values;
}

TensorOr Leaf(Context& context, const Layout& layout, const Dims& shape, DType dtype, int seed) {
  DT_ASSIGN_OR_RETURN(DistributedTensor leaf,
                      Place(context, layout, shape, dtype, Values(shape, seed), seed));
  leaf.set_requires_grad(true);
  return leaf;
}

struct Operands {
  DistributedTensor q, k, v;
};

absl::StatusOr<Operands> MakeOperands(Context& context, const Case& c) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const Layout q, Layout::Parse(mesh, c.q));
  DT_ASSIGN_OR_RETURN(const Layout kv, Layout::Parse(mesh, c.kv));
  Operands out;
  DT_ASSIGN_OR_RETURN(out.q, Leaf(context, q, c.shapes.q(), c.dtype, 1));
  DT_ASSIGN_OR_RETURN(out.k, Leaf(context, kv, c.shapes.kv(), c.dtype, 2));
  DT_ASSIGN_OR_RETURN(out.v, Leaf(context, kv, c.shapes.kv(), c.dtype, 3));
  return out;
}

// Forward, and backward from a weighted sum of o. Returns o and lse.
absl::StatusOr<AttentionResults> RunCase(Context& context, const Case& c, const Operands& in) {
  DT_ASSIGN_OR_RETURN(AttentionResults results, AttentionWithLse(in.q, in.k, in.v, c.options));
  DT_ASSIGN_OR_RETURN(const DistributedTensor weights,
                      Place(context, Layout::Replicated(in.q.mesh(), 4), c.shapes.q(), c.dtype,
                            Values(c.shapes.q(), 4), 4));
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(results.o, weights), {0, 1, 2, 3})));
  return results;
}

absl::StatusOr<Outcome> GlobalOutcome(const Operands& in, const AttentionResults& results) {
  Outcome out;
  DT_ASSIGN_OR_RETURN(out.o, GlobalValues(results.o));
  DT_ASSIGN_OR_RETURN(out.lse, GlobalValues(results.lse));
  DT_ASSIGN_OR_RETURN(out.dq, GlobalValues(in.q.grad()));
  DT_ASSIGN_OR_RETURN(out.dk, GlobalValues(in.k.grad()));
  DT_ASSIGN_OR_RETURN(out.dv, GlobalValues(in.v.grad()));
  return out;
}

int RanksOf(const Case& c) { return DeviceMesh::Parse(c.mesh).value().size(); }

// Of any rank: they are alike.
Outcome RunOn(const Case& c, TrafficTable* traffic = nullptr) {
  Outcome outcome;
  std::mutex mutex;
  DT_EXPECT_OK(RunRanks(RanksOf(c), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const AttentionResults results, RunCase(context, c, in));
    if (traffic != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const auto& [key, counted] : context.communicator().traffic()) {
        Traffic& sum = (*traffic)[key];
        sum.calls += counted.calls;
        sum.messages += counted.messages;
        sum.bytes += counted.bytes;
      }
    }
    DT_ASSIGN_OR_RETURN(Outcome mine, GlobalOutcome(in, results));
    if (context.rank() == 0) outcome = std::move(mine);
    return absl::OkStatus();
  }));
  return outcome;
}

Outcome OneRank(Case c) {
  c.mesh = "one=1";
  c.q = c.kv = "[] [] [] []";
  c.dtype = DType::kF64;
  c.options.method = AttentionMethod::kAutomatic;
  c.options.all_to_all = "";
  return RunOn(c);
}

void ExpectNear(const Doubles& got, const Doubles& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << what;
      continue;
    }
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;  // also false for NaN
}

void ExpectSame(const Outcome& got, const Outcome& want, double tolerance,
                const std::string& what) {
  ExpectNear(got.o, want.o, tolerance, absl::StrCat(what, ": o"));
  ExpectNear(got.lse, want.lse, tolerance, absl::StrCat(what, ": lse"));
  ExpectNear(got.dq, want.dq, tolerance, absl::StrCat(what, ": dq"));
  ExpectNear(got.dk, want.dk, tolerance, absl::StrCat(what, ": dk"));
  ExpectNear(got.dv, want.dv, tolerance, absl::StrCat(what, ": dv"));
}

std::string Describe(const Case& c) {
  return absl::StrCat(c.mesh, " ", c.q, " ", c.kv, " ", c.options.mask.ToString(), " ",
                      ToString(c.options.method), " ", c.options.all_to_all, " ", ToString(c.dtype),
                      " s ", c.shapes.s, " t ", c.shapes.t);
}

struct Placed {
  const char *mesh, *q, *kv;
};
constexpr Placed kPlaced[] = {
    {"cp=2", "[] [cp] [] []", "[] [cp] [] []"},
    {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []"},
    {"cp=3", "[] [cp] [] []", "[] [cp:zigzag] [] []"},  // unlike orders
    {"cp=2,tp=2", "[] [cp:zigzag] [tp] []", "[] [cp:zigzag] [tp] []"},
    {"tp=2,cp=2", "[] [cp:zigzag] [tp] []", "[] [cp:zigzag] [tp] []"},
    {"dp=2,cp=2", "[dp] [_ x 2(cp)] [] []", "[dp] [_ x 2(cp)] [] []"},  // striped
    {"u=2,r=2", "[] [u:zigzag,r:zigzag] [] []", "[] [u:zigzag,r:zigzag] [] []"},
    {"u=2,r=2", "[] [u,r] [] []", "[] [r,u] [] []"},
    {"cp=3", "[] [cp] [] []", "[] [] [] []"},              // keys whole
    {"cp=3", "[] [] [] []", "[] [cp:zigzag] [] []"},       // queries whole: merged
    {"a=2,b=2", "[] [a] [] []", "[] [b] [] []"},           // both
    {"cp=2,tp=2", "[] [cp,tp] [] []", "[] [cp] [tp] []"},  // something has to move
    {"cp=2,tp=4", "[] [cp] [tp] []", "[] [cp] [] []"},     // heads, too
    {"dp=2,cp=2", "[] [cp] [] []", "[dp] [cp] [] []"},     // batches
};

std::vector<AttentionMask> Masks() {
  return {AttentionMask::Full(), AttentionMask::Causal(), AttentionMask::Window(3).value(),
          AttentionMask::Prefix(2).value(), AttentionMask::Documents({0, 5, 7}).value()};
}

TEST(Attention, EveryPlacementAndMaskGivesWhatOneRankGives) {
  for (const AttentionMask& mask : Masks()) {
    const Outcome want = OneRank({.options = {.mask = mask}});
    for (const Placed& p : kPlaced) {
      for (const AttentionMethod method :
           {AttentionMethod::kRing, AttentionMethod::kGather, AttentionMethod::kAutomatic}) {
        Case c = {p.mesh, p.q, p.kv, {.mask = mask, .method = method}};
        ExpectSame(RunOn(c), want, 1e-13, Describe(c));
        if (method != AttentionMethod::kRing) continue;
        c.dtype = DType::kF32;
        ExpectSame(RunOn(c), want, 3e-6, Describe(c));
      }
    }
  }
}

TEST(Attention, AllToAllOverSomeAxesOrAll) {
  for (const AttentionMask& mask : Masks()) {
    const Outcome want = OneRank({.options = {.mask = mask}});
    for (const char* axes : {"", "u", "r", "u,r", "r,u"}) {
      const Case c = {"u=2,r=2",
                      "[] [u:zigzag,r] [] []",
                      "[] [u,r] [] []",
                      {.mask = mask, .method = AttentionMethod::kAllToAll, .all_to_all = axes}};
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
    const Case c = {"cp=2,tp=2",
                    "[] [cp:zigzag] [tp] []",
                    "[] [cp:zigzag] [tp] []",
                    {.mask = mask, .method = AttentionMethod::kAllToAll}};
    ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    for (const char* axes : {"u", "u,one", "one"}) {  // axes of size 1 split nothing
      const Case one = {"u=2,one=1",
                        "[] [u] [] []",
                        "[] [u] [] []",
                        {.mask = mask, .method = AttentionMethod::kAllToAll, .all_to_all = axes}};
      ExpectSame(RunOn(one), want, 1e-13, Describe(one));
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
      const Outcome want = OneRank(c);
      for (const Placed& p : {kPlaced[1], kPlaced[2], kPlaced[3], kPlaced[9], kPlaced[10]}) {
        c.mesh = p.mesh, c.q = p.q, c.kv = p.kv;
        c.options.method = AttentionMethod::kRing;
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
    const Outcome want = OneRank(c);
    for (const AttentionMethod method :
         {AttentionMethod::kRing, AttentionMethod::kGather, AttentionMethod::kAutomatic}) {
      c.options.method = method;
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
  }
}

TEST(Attention, RowsThatSeeNothing) {
  // 12 queries and 4 keys that end together: the first 8 see none.
  Case c = {"cp=3", "[] [cp] [] []", "[] [cp] [] []", {.method = AttentionMethod::kRing}};
  c.shapes.t = 4;
  const Outcome got = RunOn(c);
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
  const Outcome ring = RunOn(c);
  c.mesh = "one=1", c.q = c.kv = "[] [] [] []";
  const Outcome local = RunOn(c);
  EXPECT_EQ(ring.o, local.o);
  EXPECT_EQ(ring.lse, local.lse);
  EXPECT_EQ(ring.dq, local.dq);
  EXPECT_EQ(ring.dk, local.dk);
  EXPECT_EQ(ring.dv, local.dv);
}

int64_t Bytes(const TrafficTable& table, absl::string_view axes, CollectiveKind kind) {
  const auto it = table.find({std::string(axes), kind});
  return it == table.end() ? 0 : it->second.bytes;
}

// Of every way and placement the same weights are dropped; another seed drops others, and is no
// other call for the dispatcher.
TEST(Attention, DropsTheSameWeightsOnEveryMesh) {
  const AttentionOptions options = {.dropout = 0.4, .dropout_seed = 5};
  const Outcome want = OneRank({.options = options});
  for (const Placed& p : kPlaced) {
    for (const AttentionMethod method : {AttentionMethod::kRing, AttentionMethod::kGather}) {
      Case c = {p.mesh, p.q, p.kv, options};
      c.options.method = method;
      ExpectSame(RunOn(c), want, 1e-13, Describe(c));
    }
  }
  Case c = {"u=2,r=2", "[] [u:zigzag,r] [] []", "[] [u,r] [] []", options};
  c.options.method = AttentionMethod::kAllToAll;
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

// Backward drops what its own forward dropped, whatever was called in between.
TEST(Attention, BackwardHasTheSeedOfItsForward) {
  const Case c = {"cp=2", "[] [cp] [] []", "[] [cp] [] []", {.dropout = 0.4, .dropout_seed = 5}};
  const Outcome want = RunOn(c);
  DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    DT_ASSIGN_OR_RETURN(const DistributedTensor o, Attention(in.q, in.k, in.v, c.options));
    AttentionOptions other = c.options;
    other.dropout_seed = 6;
    DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, other).status());
    const TensorOr weights = Place(context, Layout::Replicated(in.q.mesh(), 4), c.shapes.q(),
                                   c.dtype, Values(c.shapes.q(), 4), 4);
    DT_RETURN_IF_ERROR(Backward(Sum(Mul(o, weights), {0, 1, 2, 3})));
    DT_ASSIGN_OR_RETURN(const Doubles dk, GlobalValues(in.k.grad()));
    EXPECT_EQ(dk, want.dk);
    return absl::OkStatus();
  }));
}

// What moves, in bytes that all ranks receive, is what the textbook says.
TEST(Attention, MovesWhatItsMethodSays) {
  Case c = {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
  c.options.mask = AttentionMask::Full();
  c.shapes.s = c.shapes.t = 16;
  const int64_t hop = 2 * 8 * NumElements(c.shapes.kv());  // of all ranks; f64
  {
    TrafficTable traffic;
    c.options.method = AttentionMethod::kRing;
    RunOn(c, &traffic);
    // Keys 3 hops forward and 3 backward, gradients 4.
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kPermute), hop * (3 + 3 + 4));
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllGather), 0);
  }
  {
    TrafficTable traffic;
    c.options.method = AttentionMethod::kGather;
    RunOn(c, &traffic);
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllGather), hop * 3);
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kPermute), 0);
  }
  {
    TrafficTable traffic;
    c.options.method = AttentionMethod::kAllToAll;
    RunOn(c, &traffic);
    // q, k, v and o; lse, since it is asked for; the gradient of o. Those of leaves stay.
    const int64_t queries = 8 * NumElements(c.shapes.q());
    const int64_t lse = 8 * c.shapes.batch * c.shapes.heads * c.shapes.s;
    EXPECT_EQ(Bytes(traffic, "cp", CollectiveKind::kAllToAll), (3 * queries + hop + lse) * 3 / 4);
  }
}

// Queries whole, keys sharded: one gather of each rank's o and lse, and no keys.
TEST(Attention, DecodingMovesNoKeys) {
  Case c = {"cp=4", "[] [] [] []", "[] [cp] [] []", {}};
  c.shapes.s = 1;
  c.shapes.t = 64;
  c.dtype = DType::kBF16;
  TrafficTable traffic;
  DT_ASSERT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    const NoGrad no_grad(context);
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, c.options).status());
    if (context.rank() == 0) traffic = context.communicator().traffic();
    return absl::OkStatus();
  }));
  ASSERT_EQ(traffic.size(), 1);
  EXPECT_EQ(traffic.begin()->second.calls, 1);
  EXPECT_EQ(traffic.begin()->second.bytes, 3 * 4 * c.shapes.batch * c.shapes.heads * (4 + 1));
}

// The merge of the parts moves little, and nothing could take its place.
TEST(Attention, DecodingIsNotRefusedForLackOfMemory) {
  Case c = {"cp=2", "[] [] [] []", "[] [cp] [] []", {}};
  c.shapes.s = 1;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    context.set_redistribution_options({.max_extra_bytes = 1});
    return Attention(in.q, in.k, in.v, c.options).status();
  }));
}

TEST(Attention, PredictionIsWhatTheRunCounts) {
  for (const Placed& p : kPlaced) {
    for (const AttentionMethod method :
         {AttentionMethod::kRing, AttentionMethod::kGather, AttentionMethod::kAutomatic}) {
      const Case c = {p.mesh, p.q, p.kv, {.method = method}};
      DT_ASSERT_OK(RunRanks(RanksOf(c), [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
        context.communicator().ResetTraffic();
        DT_RETURN_IF_ERROR(RunCase(context, c, in).status());
        const TrafficTable counted = context.communicator().traffic();
        return Simulate(context.rank(), context.world_size(), [&](Context& simulated) {
          const auto operands = MakeOperands(simulated, c);
          if (!operands.ok()) return operands.status();
          simulated.communicator().ResetTraffic();
          const auto results = RunCase(simulated, c, *operands);
          EXPECT_EQ(simulated.communicator().traffic(), counted) << Describe(c);
          return results.status();
        });
      }));
    }
  }
}

// [b, h, s, d], [s, b, h, d] and [b, s, d, h] are transposed views of [b, s, h, d]. Of one
// position, rank 1 has an empty view.
TEST(Attention, OtherOrdersOfDimensions) {
  for (const auto& [a, b, length] :
       std::vector<std::array<int, 3>>{{1, 2, 12}, {0, 1, 12}, {2, 3, 12}, {2, 3, 1}}) {
    Case c = {"cp=2", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
    c.shapes.s = c.shapes.t = length;
    const Outcome want = OneRank(c);
    for (const AttentionMethod method : {AttentionMethod::kRing, AttentionMethod::kAllToAll}) {
      Outcome got;
      DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(Operands in, MakeOperands(context, c));
        // Leaves in the other order, made by copying.
        Operands stored;
        for (DistributedTensor Operands::*x : {&Operands::q, &Operands::k, &Operands::v}) {
          const NoGrad no_grad(context);
          DT_ASSIGN_OR_RETURN(stored.*x, Scale(Transpose(in.*x, a, b), 1));
          (stored.*x).set_requires_grad(true);
        }
        AttentionOptions options = c.options;
        options.method = method;
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
        Outcome mine;
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

// The gradients of streamed keys lie as the keys do, not Partial.
TEST(Attention, LayoutsOfResultsAndGradients) {
  for (const AttentionMethod method : {AttentionMethod::kRing, AttentionMethod::kAllToAll}) {
    const Case c = {"cp=2", "[] [cp:zigzag] [] []", "[] [cp] [] []", {.method = method}};
    DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      DT_ASSIGN_OR_RETURN(const AttentionResults results, RunCase(context, c, in));
      EXPECT_EQ(results.o.layout(), in.q.layout());
      EXPECT_EQ(results.lse.layout().ToString(), "[] [] [cp:zigzag]");
      if (method == AttentionMethod::kRing) {
        EXPECT_EQ(in.k.grad().layout(), in.k.layout());
      }
      return absl::OkStatus();
    }));
  }
}

// The Context's links and cap decide, and calls that were decided before are decided again.
TEST(Attention, AutomaticFollowsTheOptionsOfTheContext) {
  Case c = {"cp=4", "[] [cp:zigzag] [] []", "[] [cp:zigzag] [] []", {}};
  c.shapes.kv_heads = 8;
  c.shapes.s = c.shapes.t = 16;
  DT_ASSERT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    const auto calls = [&](CollectiveKind kind) -> absl::StatusOr<int64_t> {
      context.communicator().ResetTraffic();
      const NoGrad no_grad(context);
      DT_RETURN_IF_ERROR(Attention(in.q, in.k, in.v, c.options).status());
      const auto& traffic = context.communicator().traffic();
      const auto it = traffic.find({"cp", kind});
      return it == traffic.end() ? 0 : it->second.calls;
    };
    RedistributionOptions options;
    DT_ASSIGN_OR_RETURN(options.links, LinkTable::Parse("link * 0 1000\nmultiply 0.001"));
    context.set_redistribution_options(options);
    DT_ASSIGN_OR_RETURN(const int64_t rings, calls(CollectiveKind::kPermute));
    EXPECT_GT(rings, 0);
    DT_ASSIGN_OR_RETURN(options.links, LinkTable::Parse("link * 0 0.001\nmultiply 1000"));
    context.set_redistribution_options(options);
    DT_ASSIGN_OR_RETURN(const int64_t exchanges, calls(CollectiveKind::kAllToAll));
    EXPECT_GT(exchanges, 0);
    return absl::OkStatus();
  }));
}

TEST(Attention, RefusesWithARemedy) {
  Case c = {"cp=3", "[] [cp] [] []", "[] [cp] [] []", {}};
  const auto error = [&](const AttentionOptions& options) {
    std::string message;
    DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
      const absl::Status status = Attention(in.q, in.k, in.v, options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      if (context.rank() == 0) message = std::string(status.message());
      // The Context still works.
      return Attention(in.q, in.k, in.v, {}).status();
    }));
    return message;
  };
  EXPECT_THAT(error({.method = AttentionMethod::kAllToAll}), HasSubstr("or take method ring"));
  EXPECT_THAT(error({.method = AttentionMethod::kAllToAll, .all_to_all = "dp"}),
              HasSubstr("all_to_all"));
  EXPECT_THAT(error({.mask = AttentionMask::Window(13).value()}), HasSubstr("13"));
  EXPECT_THAT(error({.dropout = 1}), HasSubstr("no probability below 1"));
  EXPECT_THAT(error({.scale = NAN}), HasSubstr("take a finite number"));
  c.shapes.kv_heads = 3;
  const auto bad_heads = RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    return Attention(in.q, in.k, in.v, {}).status();
  });
  EXPECT_THAT(bad_heads.message(), HasSubstr("choose hq as a multiple of hkv"));
}

}  // namespace
}  // namespace dtensor
