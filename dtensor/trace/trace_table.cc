#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/trace/figure_text.h"
#include "dtensor/trace/trace_text.h"

namespace dtensor {
namespace {

// A line of a table: the sum of events that differ only in their times.
struct Row {
  absl::string_view path, name;
  TracePhase phase;
  std::string what;
  int64_t times = 0, ns = 0, wait_ns = 0;
  TrafficTable traffic;
};

class Rows {
 public:
  Row& At(const TraceEvent& event, std::string what) {
    auto [it, fresh] = places_.try_emplace(
        std::make_tuple(event.path, event.name, static_cast<int>(event.phase), what), rows_.size());
    if (fresh) rows_.push_back({event.path, event.name, event.phase, std::move(what)});
    return rows_[it->second];
  }
  const std::vector<Row>& all() const { return rows_; }

 private:
  std::vector<Row> rows_;  // in the order of their first events
  HashMap<std::tuple<absl::string_view, absl::string_view, int, std::string>, size_t> places_;
};

int64_t SpentIn(const TraceEvent& event) { return std::max<int64_t>(event.duration_ns, 0); }

// The redistribution of which an exchange is a round; null if there is none.
const TraceEvent* MoveOf(const RankTrace& trace, const TraceEvent& exchange) {
  if (exchange.parent < 0) return nullptr;
  const TraceEvent& parent = trace.events[exchange.parent];
  return parent.kind == TraceKind::kRedistribution ? &parent : nullptr;
}

std::string WhatMoved(const TraceEvent& move) {
  const std::string more =
      move.tensors > 1 ? absl::StrCat(" and ", move.tensors - 1, " more") : std::string();
  return absl::StrCat(WhyText(move), ": ", move.tensor, more, ", ", move.from, " -> ", move.to);
}

Rows Moved(const RankTrace& trace) {
  Rows rows;
  for (const TraceEvent& event : trace.events) {
    if (event.kind == TraceKind::kRedistribution) {
      Row& row = rows.At(event, WhatMoved(event));
      ++row.times;
      row.ns += SpentIn(event);
      row.wait_ns += event.wait_ns;
    }
    if (event.kind != TraceKind::kExchange) continue;
    const TraceEvent* const move = MoveOf(trace, event);
    Row& row =
        move == nullptr ? rows.At(event, "its own exchanges") : rows.At(*move, WhatMoved(*move));
    CommunicatorTraffic& sum = row.traffic[TrafficKey(std::string(event.axes), event.collective)];
    sum.calls += event.traffic.calls;
    sum.messages += event.traffic.messages;
    sum.bytes += event.traffic.bytes;
    if (move != nullptr) continue;
    ++row.times;
    row.ns += SpentIn(event);
    row.wait_ns += event.wait_ns;
  }
  return rows;
}

// The own time of each event: without that of others within it. "Within" is by time, not by parent,
// since a later round of an asynchronous redistribution has that as its parent, but runs while some
// operator waits for it.
std::vector<int64_t> OwnTimes(const RankTrace& trace) {
  std::vector<int64_t> own(trace.events.size());
  std::vector<size_t> open;  // each is within the one before
  const auto is_over = [&](const TraceEvent& event, int64_t now) {
    return event.complete() && event.start_ns + event.duration_ns <= now;
  };
  for (size_t i = 0; i < own.size(); ++i) {
    const TraceEvent& event = trace.events[i];
    own[i] = SpentIn(event);
    if (event.asynchronous) continue;
    while (!open.empty() && is_over(trace.events[open.back()], event.start_ns)) open.pop_back();
    if (!open.empty() && trace.events[open.back()].complete()) own[open.back()] -= SpentIn(event);
    open.push_back(i);
  }
  return own;
}

// The table of operators, with their own time.
Rows Ran(const RankTrace& trace) {
  const std::vector<int64_t> own = OwnTimes(trace);
  Rows rows;
  for (size_t i = 0; i < own.size(); ++i) {
    if (trace.events[i].kind != TraceKind::kOperator) continue;
    Row& row = rows.At(trace.events[i], "");
    ++row.times;
    row.ns += own[i];
  }
  return rows;
}

std::string Time(int64_t ns) { return SecondsText(static_cast<double>(ns) * 1e-9); }

std::string PathText(absl::string_view path) {
  return path.empty() ? "-" : std::string(path.data(), path.size());
}

// Pads columns, except the last, to their longest text.
std::string Align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t c = 0; c + 1 < line.size(); ++c) {
      absl::StrAppendFormat(&row, "%-*s  ", static_cast<int>(widths[c]), line[c]);
    }
    absl::StrAppend(&text, row, line.back(), "\n");
  }
  return text;
}

std::string TrafficOf(const TrafficTable& table) {
  std::vector<std::string> parts;
  for (const auto& [key, traffic] : table) parts.push_back(TrafficText(key, traffic));
  return absl::StrJoin(parts, "; ");
}

std::string MovedTable(const RankTrace& trace) {
  const Rows rows = Moved(trace);
  if (rows.all().empty()) return "nothing moved\n";
  std::vector<std::vector<std::string>> lines = {
      {"module", "phase", "by", "times", "time", "waited", "received", "what"}};
  for (const Row& row : rows.all()) {
    lines.push_back({PathText(row.path), std::string(ToString(row.phase)), std::string(row.name),
                     absl::StrCat(row.times), Time(row.ns), Time(row.wait_ns),
                     TrafficOf(row.traffic), row.what});
  }
  return Align(lines);
}

std::string OperatorTable(const RankTrace& trace) {
  const Rows rows = Ran(trace);
  if (rows.all().empty()) return "";
  std::vector<std::vector<std::string>> lines = {{"module", "phase", "times", "time", "operator"}};
  for (const Row& row : rows.all()) {
    lines.push_back({PathText(row.path), std::string(ToString(row.phase)), absl::StrCat(row.times),
                     Time(row.ns), std::string(row.name)});
  }
  return absl::StrCat("\n", Align(lines));
}

}  // namespace

std::string TraceTable(const RankTrace& trace) {
  std::string text = absl::StrCat("rank ", trace.rank, " of ", trace.world_size,
                                  trace.simulated ? ", predicted" : "", "\n\n");
  absl::StrAppend(&text, MovedTable(trace));
  for (const auto& [key, traffic] : trace.Traffic()) {
    absl::StrAppend(&text, "total ", TrafficText(key, traffic), "\n");
  }
  absl::StrAppend(&text, OperatorTable(trace));
  if (trace.dropped > 0) {
    absl::StrAppend(&text, "\n", trace.dropped,
                    " later events are missing: raise TraceOptions::max_events\n");
  }
  return text;
}

}  // namespace dtensor
