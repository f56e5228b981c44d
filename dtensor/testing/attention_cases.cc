#include "dtensor/testing/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"
#include "gtest/gtest.h"

namespace dtensor::attention_testing {

std::string Describe(const Case& c) {
  const Shapes& n = c.shapes;
  return absl::StrCat(c.mesh, " q ", c.q, " k ", c.kv, " v ", c.v, " ", c.options.mask.ToString(),
                      " ", ToString(c.options.plan), " ", c.options.all_to_all, " dropout ",
                      c.options.dropout, " offset ", c.options.query_offset.value_or(-1), " ",
                      ToString(c.dtype), " ", DimsToString(n.q()), " ", DimsToString(n.kv()),
                      " lengths ", DimsToString(c.key_lengths), " ", c.lengths);
}

Doubles Values(const Dims& shape, int seed) {
  Doubles values(NumElements(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(TestHash(seed, i, 0) >> 40) * 0x1p-23 - 1;
  }
  return values;
}

namespace {

TensorOr Leaf(Context& context, const Layout& layout, const Dims& shape, DType dtype, int seed) {
  DT_ASSIGN_OR_RETURN(DistributedTensor leaf,
                      Place(context, layout, shape, dtype, Values(shape, seed), seed));
  DT_RETURN_IF_ERROR(leaf.set_requires_grad(true));
  return leaf;
}

}  // namespace

absl::StatusOr<Operands> MakeOperands(Context& context, const Case& c) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(c.mesh));
  DT_ASSIGN_OR_RETURN(const Layout q, Layout::Parse(mesh, c.q));
  DT_ASSIGN_OR_RETURN(const Layout k, Layout::Parse(mesh, c.kv));
  DT_ASSIGN_OR_RETURN(const Layout v, Layout::Parse(mesh, c.v.empty() ? c.kv : c.v));
  Operands out;
  DT_ASSIGN_OR_RETURN(out.q, Leaf(context, q, c.shapes.q(), c.dtype, 1));
  DT_ASSIGN_OR_RETURN(out.k, Leaf(context, k, c.shapes.kv(), c.dtype, 2));
  DT_ASSIGN_OR_RETURN(out.v, Leaf(context, v, c.shapes.kv(), c.dtype, 3));
  return out;
}

absl::StatusOr<AttentionResults> RunCase(Context& context, const Case& c, const Operands& in) {
  AttentionOptions options = c.options;
  if (!c.key_lengths.empty()) {
    DT_ASSIGN_OR_RETURN(const Layout layout, Layout::Parse(in.q.mesh(), c.lengths));
    const Doubles lengths(c.key_lengths.begin(), c.key_lengths.end());
    DT_ASSIGN_OR_RETURN(options.key_lengths,
                        Place(context, layout, {c.shapes.batch}, DType::kI64, lengths, 5));
  }
  DT_ASSIGN_OR_RETURN(AttentionResults results, AttentionWithLse(in.q, in.k, in.v, options));
  DT_ASSIGN_OR_RETURN(const DistributedTensor weights,
                      Place(context, Layout::Replicated(in.q.mesh(), 4), c.shapes.q(), c.dtype,
                            Values(c.shapes.q(), 4), 4));
  DT_RETURN_IF_ERROR(Backward(Sum(Mul(results.o, weights), {0, 1, 2, 3})));
  return results;
}

namespace {

absl::StatusOr<AttentionDoubles> GlobalOutcome(const Operands& in,
                                               const AttentionResults& results) {
  AttentionDoubles out;
  DT_ASSIGN_OR_RETURN(out.o, GlobalValues(results.o));
  DT_ASSIGN_OR_RETURN(out.lse, GlobalValues(results.lse));
  DT_ASSIGN_OR_RETURN(out.dq, GlobalValues(in.q.grad()));
  DT_ASSIGN_OR_RETURN(out.dk, GlobalValues(in.k.grad()));
  DT_ASSIGN_OR_RETURN(out.dv, GlobalValues(in.v.grad()));
  return out;
}

}  // namespace

int RanksOf(const Case& c) { return DeviceMesh::Parse(c.mesh).value().size(); }

absl::StatusOr<AttentionDoubles> TryOn(const Case& c, TrafficTable* traffic) {
  AttentionDoubles outcome;
  std::mutex mutex;
  DT_RETURN_IF_ERROR(RunRanks(RanksOf(c), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Operands in, MakeOperands(context, c));
    context.communicator().ResetTraffic();
    DT_ASSIGN_OR_RETURN(const AttentionResults results, RunCase(context, c, in));
    if (traffic != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex);
      for (const auto& [key, counted] : context.communicator().traffic()) {
        CommunicatorTraffic& sum = (*traffic)[key];
        sum.calls += counted.calls;
        sum.messages += counted.messages;
        sum.bytes += counted.bytes;
      }
    }
    DT_ASSIGN_OR_RETURN(AttentionDoubles mine, GlobalOutcome(in, results));
    if (context.rank() == 0) outcome = std::move(mine);
    return absl::OkStatus();
  }));
  return outcome;
}

AttentionDoubles RunOn(const Case& c, TrafficTable* traffic) {
  const absl::StatusOr<AttentionDoubles> outcome = TryOn(c, traffic);
  DT_EXPECT_OK(outcome.status());
  return outcome.ok() ? *outcome : AttentionDoubles();
}

AttentionDoubles OneRank(Case c) {
  c.mesh = "one=1";
  c.q = c.kv = c.v = "[] [] [] []";
  c.lengths = "[]";
  c.dtype = DType::kF64;
  c.options.plan = AttentionPlanKind::kAutomatic;
  c.options.all_to_all = "";
  return RunOn(c);
}

namespace {

void ExpectNear(const Doubles& got, const Doubles& want, double tolerance, double least,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double difference = 0, norm = 0, floor = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << what;
      continue;
    }
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
    floor += least * least;
  }
  // Also false for NaN.
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(std::max(norm, floor))) << what;
}

}  // namespace

void ExpectSame(const AttentionDoubles& got, const AttentionDoubles& want, double tolerance,
                const std::string& what, double least) {
  ExpectNear(got.o, want.o, tolerance, least, absl::StrCat(what, ": o"));
  ExpectNear(got.lse, want.lse, tolerance, least, absl::StrCat(what, ": lse"));
  ExpectNear(got.dq, want.dq, tolerance, least, absl::StrCat(what, ": dq"));
  ExpectNear(got.dk, want.dk, tolerance, least, absl::StrCat(what, ": dk"));
  ExpectNear(got.dv, want.dv, tolerance, least, absl::StrCat(what, ": dv"));
}

void ExpectPredicted(const Case& c) {
  DT_EXPECT_OK(RunRanks(RanksOf(c), [&](Context& context) -> absl::Status {
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
  })) << Describe(c);
}

}  // namespace dtensor::attention_testing
