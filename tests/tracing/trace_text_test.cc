// Texts of made-up traces: what the JSON contains, and to whom time is attributed.
#include "dtensor/trace/trace_text.h"

#include <set>
#include <string>
#include <vector>

#include "dtensor/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

TraceEvent Event(TraceKind kind, const char* name, int64_t start, int64_t duration,
                 int64_t parent = -1) {
  TraceEvent event;
  event.kind = kind;
  event.name = name;
  event.start_ns = start;
  event.duration_ns = duration;
  event.parent = parent;
  return event;
}

// The second round of an asynchronous move runs while an operator waits, and is the move's child.
TEST(TraceTable, WhatRunsWhileAnOperatorWaitsIsNotItsOwn) {
  RankTrace trace;
  TraceEvent move = Event(TraceKind::kRedistribution, "Redistribute", 0, 100'000);
  move.asynchronous = true;
  TraceEvent first = Event(TraceKind::kExchange, "Redistribute", 1'000, 49'000, 0);
  first.asynchronous = true;
  trace.events = {move, first, Event(TraceKind::kOperator, "MatMul", 40'000, 100'000),
                  Event(TraceKind::kWait, "Redistribute", 41'000, 9'000, 2),
                  Event(TraceKind::kExchange, "Redistribute", 50'000, 50'000, 0)};
  EXPECT_THAT(TraceTable(trace), HasSubstr("1      41.0 us  MatMul\n"));
}

// What has not ended has taken no time yet, and no negative one.
TEST(TraceTable, OfAnOperatorThatIsOpen) {
  RankTrace trace;
  trace.events = {Event(TraceKind::kOperator, "Attention", 0, -1),
                  Event(TraceKind::kExchange, "Attention", 1'000, 3'000, 0),
                  Event(TraceKind::kOperator, "MatMul", 5'000, 4'000, 0)};
  const std::string table = TraceTable(trace);
  EXPECT_THAT(table, HasSubstr("1      0 us     Attention\n"));
  EXPECT_THAT(table, HasSubstr("1      4.00 us  MatMul\n"));
}

// A trace with an event of each kind.
RankTrace OfEachKind() {
  RankTrace trace;
  trace.rank = 1;
  trace.world_size = 4;
  TraceEvent move = Event(TraceKind::kRedistribution, "MatMul", 3, 9, 1);
  move.cause = TraceCause::kOperand;
  move.index = 1;
  move.implicit = true;
  move.tensors = 1;
  move.tensor = "[8] f32 on [\"tp\"=2]";
  move.from = "[tp]";
  move.to = "[]";
  move.wait_ns = 7;
  TraceEvent exchange = Event(TraceKind::kExchange, "MatMul", 4, 7, 2);
  exchange.collective = CollectiveKind::kAllGather;
  exchange.axes = "tp";
  exchange.traffic = {1, 2, 16};
  exchange.live_bytes = 64;
  exchange.wait_ns = 7;
  trace.events = {Event(TraceKind::kModule, "mlp", 1, -1),
                  Event(TraceKind::kOperator, "MatMul", 2, 20, 0),
                  move,
                  exchange,
                  Event(TraceKind::kWait, "MatMul", 5, 1, 1),
                  Event(TraceKind::kSpan, "s", 30, 1)};
  return trace;
}

TEST(TraceJson, HasTheMembersOfEachKind) {
  const Json file = Json::parse(TraceJson({OfEachKind()}), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(file.is_object());
  const Json& rank = file["ranks"].at(0);
  EXPECT_EQ(rank["rank"], 1);
  EXPECT_EQ(rank["world_size"], 4);
  EXPECT_EQ(rank["simulated"], false);
  EXPECT_EQ(rank["dropped"], 0);
  const std::set<std::string> all = {"kind",         "name", "start_ns", "duration_ns",
                                     "asynchronous", "path", "phase",    "parent"};
  const std::vector<std::set<std::string>> more = {
      {},  // it has not ended
      {"live_bytes"},
      {"live_bytes", "cause", "index", "why", "implicit", "tensors", "tensor", "from", "to",
       "wait_ns"},
      {"live_bytes", "collective", "axes", "calls", "messages", "bytes", "wait_ns"},
      {"live_bytes", "collective", "axes"},
      {"live_bytes"}};
  const Json& events = rank["events"];
  ASSERT_EQ(events.size(), more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    std::set<std::string> wanted = all, found;
    wanted.insert(more[i].begin(), more[i].end());
    for (const auto& [name, value] : events[i].items()) found.insert(name);
    EXPECT_EQ(found, wanted) << events[i];
  }
}

TEST(TraceJson, HasTheValuesOfTheEvents) {
  const Json file = Json::parse(TraceJson({OfEachKind()}), nullptr, /*allow_exceptions=*/false);
  const Json move = file["ranks"][0]["events"][2], exchange = file["ranks"][0]["events"][3];
  EXPECT_EQ(move["kind"], "redistribution");
  EXPECT_EQ(move["parent"], 1);
  EXPECT_EQ(move["cause"], "operand");
  EXPECT_EQ(move["index"], 1);
  EXPECT_EQ(move["why"], "operand 1 of MatMul, by its rule");
  EXPECT_EQ(move["tensor"], "[8] f32 on [\"tp\"=2]");
  EXPECT_EQ(exchange["collective"], "all-gather");
  EXPECT_EQ(exchange["calls"], 1);
  EXPECT_EQ(exchange["messages"], 2);
  EXPECT_EQ(exchange["bytes"], 16);
  EXPECT_EQ(exchange["live_bytes"], 64);
}

}  // namespace
}  // namespace dtensor
