// What a trace contains: operators, redistributions and exchanges, with reasons, phases, paths and
// times; what it omits if it is off, bounded or for redistributions alone; and its texts.
#include "dtensor/trace/trace.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tests/tracing/check_trace.h"
#include "dtensor/trace/trace_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

DeviceMesh Tp2() { return *DeviceMesh::Parse("tp=2"); }

TensorOr Zeros(Context& context, absl::Span<const Placement> placements, const Dims& shape) {
  return Full(context, Tp2(), placements, shape, DType::kF32, 0);
}

// "operator MatMul", in the order of their beginnings, each behind a dot for each of its parents.
std::vector<std::string> Outline(const RankTrace& trace) {
  std::vector<std::string> lines;
  for (const TraceEvent& event : trace.events) {
    std::string line;
    for (int64_t at = event.parent; at >= 0; at = trace.events[at].parent) line += ".";
    absl::StrAppend(&line, ToString(event.kind), " ", event.name);
    if (event.kind == TraceKind::kExchange) absl::StrAppend(&line, " ", event.traffic.bytes);
    lines.push_back(line);
  }
  return lines;
}

// Runs `program` on two ranks; the trace of rank 0.
template <typename Program>
RankTrace TraceOf(Program program, const RunOptions& options = {}) {
  RankTrace trace;
  DT_EXPECT_OK(RunRanks(
      2,
      [&](Context& context) -> absl::Status {
        DT_RETURN_IF_ERROR(program(context));
        if (context.rank() == 0) trace = context.trace();
        return absl::OkStatus();
      },
      options));
  return trace;
}

TEST(Trace, AnOperandThatMovesByItself) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Replicate()}, {4, 8}),
                   w = Zeros(context, {Shard(0)}, {8, 6});
    const TensorOr b = Zeros(context, {Shard(1)}, {4, 6});
    context.StartTrace();
    return Add(MatMul(x, w), b).status();  // S(0) of w: a Partial product
  });
  EXPECT_THAT(Outline(trace), ElementsAre("operator MatMul", "operator Add", ".redistribution Add",
                                          "..exchange Add 48"));
  const TraceEvent& move = trace.events[2];
  EXPECT_EQ(move.cause, TraceCause::kOperand);
  EXPECT_EQ(move.index, 0);
  EXPECT_TRUE(move.implicit);
  EXPECT_EQ(WhyText(move), "operand 0 of Add, by its rule");
  EXPECT_EQ(move.tensor, "[4, 6] f32 on [\"tp\"=2]");
  EXPECT_EQ(move.from, "[] [] P(sum: tp)");
  EXPECT_EQ(move.to, "[] [tp]");
  EXPECT_EQ(trace.events[3].collective, CollectiveKind::kReduceScatter);
  EXPECT_EQ(trace.events[3].axes, "tp");
  EXPECT_FALSE(trace.events[3].asynchronous);
  EXPECT_EQ(move.wait_ns, trace.events[3].duration_ns);
}

TEST(Trace, WhatIsAskedForIsNotImplicit) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    context.StartTrace();
    DT_RETURN_IF_ERROR(x->Redistribute({Replicate()}).status());
    DT_RETURN_IF_ERROR(x->Redistribute({Replicate()}).status());  // remembered: nothing moves
    return x->Redistribute({Shard(0)}).status();                  // it lies there
  });
  EXPECT_THAT(Outline(trace),
              ElementsAre("redistribution Redistribute", ".exchange Redistribute 64"));
  EXPECT_EQ(WhyText(trace.events[0]), "asked for");
  EXPECT_FALSE(trace.events[0].implicit);
}

TEST(Trace, AnAsynchronousOneOverlapsWithWhatFollows) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8}),
                   y = Zeros(context, {Replicate()}, {4, 8});
    context.StartTrace();
    TensorOr all = x->Redistribute({Replicate()}, {.async = true});
    DT_RETURN_IF_ERROR(Scale(y, 2).status());
    DT_RETURN_IF_ERROR(Scale(all, 2).status());
    DT_RETURN_IF_ERROR(x->Redistribute({Shard(1)}, {.async = true}).status());  // dropped
    return x->Redistribute({Shard(1)}).status();
  });
  EXPECT_THAT(Outline(trace),
              ElementsAre("redistribution Redistribute", ".exchange Redistribute 64",
                          "operator Scale", "operator Scale", ".wait Redistribute",
                          "redistribution Redistribute", ".exchange Redistribute 32",
                          "redistribution Redistribute", ".exchange Redistribute 32"));
  const TraceEvent &move = trace.events[0], &exchange = trace.events[1], &wait = trace.events[4];
  EXPECT_TRUE(move.asynchronous);
  EXPECT_TRUE(exchange.asynchronous);
  EXPECT_GE(move.start_ns + move.duration_ns, wait.start_ns);
  EXPECT_EQ(exchange.wait_ns, wait.duration_ns);
  EXPECT_EQ(move.wait_ns, wait.duration_ns);
  EXPECT_TRUE(trace.events[5].complete()) << "dropped, and finished by the next";
  EXPECT_EQ(trace.events[5].wait_ns, 0);
  DT_EXPECT_OK(CheckChromeTrace(ChromeTrace({trace})).status());
}

TEST(Trace, BackwardKnowsItsOperatorsAndModules) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    LinearLayer layer(8, 6, 0.1);
    DT_RETURN_IF_ERROR(layer.Materialize(context, Tp2(), 1));
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    context.StartTrace();
    const TensorOr loss = Mean(layer(x), {0, 1});
    DT_RETURN_IF_ERROR(Backward(loss));
    return ReduceGradients(layer.Parameters());
  });
  std::vector<std::string> backward;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kOperator && event.phase == TracePhase::kBackward)
      backward.emplace_back(event.name);
  }
  EXPECT_THAT(backward, ElementsAre("Mean", "Linear"));
  EXPECT_EQ(trace.events[0].kind, TraceKind::kModule);
  const TraceEvent& reduced = trace.events[trace.events.size() - 2];
  EXPECT_EQ(WhyText(reduced), "gradients to where parameters rest");
  EXPECT_EQ(reduced.name, "ReduceGradients");
  EXPECT_EQ(reduced.phase, TracePhase::kForward) << "it is called after Backward";
}

TEST(Trace, RedistributionsAlone) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {64, 8}), w = Zeros(context, {Shard(0)}, {8, 6});
    context.StartTrace({.operators = false});
    const TraceSpan span(context.tracer(), TraceKind::kSpan, "mine");
    return MatMul(x, w).status();
  });
  EXPECT_THAT(Outline(trace),
              ElementsAre("span mine", ".redistribution MatMul", "..exchange MatMul 96"));
}

TEST(Trace, StartsAndStops) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    EXPECT_EQ(context.tracer(), nullptr);
    EXPECT_TRUE(context.trace().events.empty());
    EXPECT_EQ(context.trace().world_size, 2);
    DT_RETURN_IF_ERROR(Scale(x, 1).status());
    context.StartTrace();
    DT_RETURN_IF_ERROR(Scale(x, 2).status());
    context.StopTrace();
    DT_RETURN_IF_ERROR(x->Redistribute({Replicate()}).status());
    context.StartTrace();
    return Neg(x).status();
  });
  EXPECT_THAT(Outline(trace), ElementsAre("operator Scale", "operator Neg"));
}

// What began before the end is ended after it.
TEST(Trace, StopsWhileSomethingIsOnItsWay) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    context.StartTrace();
    const TensorOr all = x->Redistribute({Replicate()}, {.async = true});
    context.StopTrace();
    return Scale(all, 1).status();
  });
  EXPECT_THAT(Outline(trace),
              ElementsAre("redistribution Redistribute", ".exchange Redistribute 64"));
  EXPECT_TRUE(trace.events[0].complete());
}

TEST(Trace, HasABound) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    context.StartTrace({.max_events = 3});
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(Scale(x, i).status());
      DT_RETURN_IF_ERROR(Scale(x, i)->Redistribute({Replicate()}).status());
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(trace.events.size(), 3u);
  EXPECT_EQ(trace.dropped, 17);  // of 5 times 2 operators, a redistribution and an exchange
  EXPECT_THAT(TraceTable(trace), HasSubstr("17 later events are missing"));
  EXPECT_THAT(ChromeTrace({trace}), HasSubstr("\"dropped_events\": \"17\""));
}

TEST(Trace, OfADeferredDevice) {
  RunOptions options;
  options.device = Device::Kind::kDeferred;
  TraceOf(
      [](Context& context) -> absl::Status {
        context.StartTrace();
        const TensorOr x = Zeros(context, {Shard(0)}, {64, 8}),
                       w = Zeros(context, {Shard(0)}, {8, 6});
        DT_RETURN_IF_ERROR(ToGlobal<float>(*MatMul(x, w)).status());
        return CheckTrace(context);
      },
      options);
}

// A simulated rank's times are its clock's, so they are the same each time, as are its bytes.
TEST(Trace, OfASimulatedRank) {
  std::vector<std::string> traces;
  for (int run = 0; run < 2; ++run) {
    DT_ASSERT_OK(Simulate(1, 2, [&](Context& context) -> absl::Status {
      const TensorOr x = Zeros(context, {Shard(0)}, {64, 64}),
                     w = Zeros(context, {Shard(0)}, {64, 64});
      context.StartTrace();
      const TensorOr y = MatMul(x, w);
      DT_RETURN_IF_ERROR(y.status());
      const TensorOr all = y->Redistribute({Replicate()}, {.async = true});
      DT_RETURN_IF_ERROR(Scale(all, 2).status());
      DT_RETURN_IF_ERROR(y->Redistribute({Shard(1)}, {.async = true}).status());  // dropped
      DT_RETURN_IF_ERROR(CheckTrace(context));
      const RankTrace trace = context.trace();
      EXPECT_TRUE(trace.simulated);
      const double seconds = context.simulated_clock()->time().total();
      EXPECT_GT(trace.events[0].duration_ns, 0);
      EXPECT_LE(static_cast<double>(trace.events.back().start_ns), seconds * 1e9);
      for (const TraceEvent& event : trace.events) EXPECT_TRUE(event.complete()) << event.name;
      traces.push_back(ChromeTrace({trace}));
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(traces[0], traces[1]);
  DT_EXPECT_OK(CheckChromeTrace(traces[0]).status());
}

TEST(Trace, ExchangesOfPlainValuesAreThere) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    context.StartTrace();
    DT_RETURN_IF_ERROR(GatherValues(context, context.rank()).status());
    return CheckTrace(context);
  });
  EXPECT_EQ(trace.events[0].axes, "world");
  EXPECT_EQ(trace.events[0].name, "GatherValues");
}

// An error in the midst of it leaves the trace sound, and the next event where it belongs.
TEST(Trace, ARefusalClosesWhatIsOpen) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    LinearLayer layer(8, 6, 0.1);
    DT_RETURN_IF_ERROR(layer.Materialize(context, Tp2(), 1));
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 7});
    context.StartTrace();
    EXPECT_FALSE(layer(x).ok());
    DT_RETURN_IF_ERROR(Neg(x).status());
    return CheckTrace(context);
  });
  EXPECT_THAT(Outline(trace), ElementsAre("module ", ".operator Linear", "operator Neg"));
  EXPECT_TRUE(trace.events[1].complete());
}

// Names are a program's, and may be any bytes.
TEST(Trace, FilesAreJsonWhateverNamesAre) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    context.StartTrace();
    const TraceSpan span(context.tracer(), TraceKind::kSpan, "a \"name\"\n\\ \xff \x01");
    return absl::OkStatus();
  });
  EXPECT_EQ(trace.events[0].name, "a \"name\"\n\\ \xff \x01");
  const std::string text = ChromeTrace({trace});
  DT_EXPECT_OK(CheckChromeTrace(text).status());
  EXPECT_THAT(text, HasSubstr("a \\\"name\\\"\\n"));
  EXPECT_THAT(TraceJson({trace}), HasSubstr("\"kind\": \"span\""));
}

// An event that has not ended is no X, which has an end.
TEST(Trace, WhatHasNotEndedIsSaidSo) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {4, 8});
    context.StartTrace();
    const TraceSpan span(context.tracer(), TraceKind::kSpan, "open");
    const TensorOr all = x->Redistribute({Replicate()}, {.async = true});
    const std::string text = ChromeTrace({context.trace()});
    DT_RETURN_IF_ERROR(CheckChromeTrace(text).status());
    EXPECT_THAT(text, HasSubstr("{\"ph\": \"B\""));
    EXPECT_THAT(text, HasSubstr("{\"ph\": \"b\""));
    EXPECT_THAT(text, Not(HasSubstr("{\"ph\": \"e\"")));
    return Scale(all, 1).status();
  });
  EXPECT_TRUE(trace.events[1].complete());
}

TEST(TraceTable, SumsByModuleAndReason) {
  const RankTrace trace = TraceOf([](Context& context) -> absl::Status {
    const TensorOr x = Zeros(context, {Shard(0)}, {64, 8});
    context.StartTrace();
    for (int i = 0; i < 2; ++i) {
      const TensorOr w = Zeros(context, {Shard(0)}, {8, 6});
      DT_RETURN_IF_ERROR(MatMul(x, w).status());
    }
    return absl::OkStatus();
  });
  const std::string table = TraceTable(trace);
  EXPECT_THAT(table, HasSubstr("rank 0 of 2\n"));
  EXPECT_THAT(table, HasSubstr("all-gather(tp): 2 calls, 192 B  operand 1 of MatMul, by its rule: "
                               "[8, 6] f32 on [\"tp\"=2], [tp] [] -> [] []\n"));
  EXPECT_THAT(table, HasSubstr("\ntotal all-gather(tp): 2 calls, 192 B\n"));
}

TEST(TraceTable, OfNothing) {
  EXPECT_EQ(TraceTable(RankTrace()), "rank 0 of 1\n\nnothing moved\n");
  DT_EXPECT_OK(CheckChromeTrace(ChromeTrace({})).status());
  DT_EXPECT_OK(CheckChromeTrace(ChromeTrace({RankTrace()})).status());
  EXPECT_EQ(TraceJson({}), "{\"ranks\": []}\n");
}

}  // namespace
}  // namespace dtensor
