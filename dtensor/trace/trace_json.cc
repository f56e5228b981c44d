#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "dtensor/trace/trace_text.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

std::string Quoted(absl::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isprint(c) && c != '"' && c != '\\';
  });
  if (plain) return absl::StrCat("\"", text, "\"");
  const nlohmann::json value(std::string(text.data(), text.size()));
  // A program's names may have any bytes, but the file must be UTF-8.
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Appends members to objects.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void Open(absl::string_view name = "") {
    if (!name.empty()) AddName(name);
    out_ += '{';
    first_ = true;
  }
  void Close() {
    out_ += '}';
    first_ = false;
  }
  void AddText(absl::string_view name, absl::string_view text) {
    AddName(name);
    out_ += Quoted(text);
  }
  void AddNumber(absl::string_view name, int64_t number) {
    AddName(name);
    absl::StrAppend(&out_, number);
  }
  void AddBool(absl::string_view name, bool value) {
    AddName(name);
    out_ += value ? "true" : "false";
  }
  // Microseconds from nanoseconds, without loss.
  void AddMicroseconds(absl::string_view name, int64_t ns) {
    AddName(name);
    absl::StrAppendFormat(&out_, "%d.%03d", ns / 1000, ns % 1000);
  }

 private:
  void AddName(absl::string_view name) {
    absl::StrAppend(&out_, first_ ? "\"" : ", \"", name, "\": ");
    first_ = false;
  }
  std::string& out_;
  bool first_ = true;
};

void AddRedistribution(const TraceEvent& event, Writer& writer) {
  writer.AddText("cause", ToString(event.cause));
  writer.AddNumber("index", event.index);
  writer.AddText("why", WhyText(event));
  writer.AddBool("implicit", event.implicit);
  writer.AddNumber("tensors", event.tensors);
  writer.AddText("tensor", event.tensor);
  writer.AddText("from", event.from);
  writer.AddText("to", event.to);
  writer.AddNumber("wait_ns", event.wait_ns);
}

void AddExchange(const TraceEvent& event, Writer& writer) {
  writer.AddText("collective", ToString(event.collective));
  writer.AddText("axes", event.axes);
  if (event.kind == TraceKind::kWait) return;
  writer.AddNumber("calls", event.traffic.calls);
  writer.AddNumber("messages", event.traffic.messages);
  writer.AddNumber("bytes", event.traffic.bytes);
  writer.AddNumber("wait_ns", event.wait_ns);
}

bool IsExchange(const TraceEvent& event) {
  return event.kind == TraceKind::kExchange || event.kind == TraceKind::kWait;
}

// The members of an event other than its name and times.
void AddDetails(const TraceEvent& event, Writer& writer) {
  writer.AddText("path", event.path);
  writer.AddText("phase", ToString(event.phase));
  writer.AddNumber("parent", event.parent);
  if (event.kind == TraceKind::kRedistribution) AddRedistribution(event, writer);
  if (IsExchange(event)) AddExchange(event, writer);
  if (event.complete()) writer.AddNumber("live_bytes", event.live_bytes);
}

// The name that a viewer shows; for an exchange "all-gather(tp)".
std::string LabelOf(const TraceEvent& event) {
  if (event.kind == TraceKind::kModule && event.name.empty()) return "(model)";
  if (IsExchange(event)) {
    return absl::StrCat(event.kind == TraceKind::kWait ? "wait for " : "",
                        ToString(event.collective), "(", event.axes, ")");
  }
  const bool back = event.kind == TraceKind::kOperator && event.phase == TracePhase::kBackward;
  return absl::StrCat(event.name, back ? " backward" : "");
}

class ChromeWriter {
 public:
  explicit ChromeWriter(std::string& out) : out_(out), writer_(out) {}

  void AddRank(const RankTrace& rank) {
    rank_ = rank.rank;
    AddMetadata("process_name", absl::StrCat("rank ", rank.rank));
    AddMetadata("thread_name", rank.simulated ? "predicted" : "host");
    for (size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& event = rank.events[i];
      if (!event.asynchronous) {
        AddEvent(event, event.complete() ? "X" : "B", "");
        continue;
      }
      const std::string id = absl::StrCat(rank.rank, ".", i);
      AddEvent(event, "b", id);
      if (event.complete()) AddEnd(event, id);
    }
  }

 private:
  void BeginEvent(const char* type) {
    out_ += first_ ? "\n" : ",\n";
    first_ = false;
    writer_.Open();
    writer_.AddText("ph", type);
    writer_.AddNumber("pid", rank_);
    writer_.AddNumber("tid", 0);
  }
  void AddMetadata(absl::string_view what, absl::string_view name) {
    BeginEvent("M");
    writer_.AddText("name", what);
    writer_.Open("args");
    writer_.AddText("name", name);
    writer_.Close();
    writer_.Close();
  }
  void AddHead(const TraceEvent& event, const char* type, int64_t ns, absl::string_view id) {
    BeginEvent(type);
    writer_.AddText("cat", ToString(event.kind));
    writer_.AddText("name", LabelOf(event));
    writer_.AddMicroseconds("ts", ns);
    if (!id.empty()) writer_.AddText("id", id);
  }
  void AddEvent(const TraceEvent& event, const char* type, absl::string_view id) {
    AddHead(event, type, event.start_ns, id);
    if (*type == 'X') writer_.AddMicroseconds("dur", event.duration_ns);
    writer_.Open("args");
    AddDetails(event, writer_);
    writer_.Close();
    writer_.Close();
  }
  void AddEnd(const TraceEvent& event, absl::string_view id) {
    AddHead(event, "e", event.start_ns + event.duration_ns, id);
    writer_.Close();
  }

  std::string& out_;
  Writer writer_;
  int rank_ = 0;
  bool first_ = true;
};

void AddRank(const RankTrace& rank, std::string& out) {
  absl::StrAppend(&out, "{\"rank\": ", rank.rank, ", \"world_size\": ", rank.world_size,
                  ", \"simulated\": ", rank.simulated ? "true" : "false",
                  ", \"dropped\": ", rank.dropped, ", \"events\": [");
  for (size_t i = 0; i < rank.events.size(); ++i) {
    const TraceEvent& event = rank.events[i];
    out += i == 0 ? "\n" : ",\n";
    Writer writer(out);
    writer.Open();
    writer.AddText("kind", ToString(event.kind));
    writer.AddText("name", event.name);
    writer.AddNumber("start_ns", event.start_ns);
    writer.AddNumber("duration_ns", event.duration_ns);
    writer.AddBool("asynchronous", event.asynchronous);
    AddDetails(event, writer);
    writer.Close();
  }
  out += "]}";
}

}  // namespace

std::string TraceJson(absl::Span<const RankTrace> ranks) {
  std::string out = "{\"ranks\": [";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) out += ",\n";
    AddRank(ranks[i], out);
  }
  out += "]}\n";
  return out;
}

std::string ChromeTrace(absl::Span<const RankTrace> ranks) {
  std::string out = "{\"traceEvents\": [";
  ChromeWriter writer(out);
  int64_t dropped = 0;
  for (const RankTrace& rank : ranks) {
    writer.AddRank(rank);
    dropped += rank.dropped;
  }
  absl::StrAppend(&out, "],\n\"displayTimeUnit\": \"ns\", \"otherData\": {\"dropped_events\": \"",
                  dropped, "\"}}\n");
  return out;
}

}  // namespace dtensor
