#include "dtensor/tests/tracing/check_trace.h"

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using Json = nlohmann::json;

absl::Status Wrong(absl::string_view what, const Json& event = nullptr) {
  return absl::InternalError(absl::StrCat("trace: ", what, event.is_null() ? "" : ": ",
                                          event.is_null() ? "" : event.dump()));
}

absl::Status CheckMembers(const Json& event, const std::set<std::string>& wanted) {
  for (const std::string& name : wanted) {
    if (!event.contains(name)) return Wrong(absl::StrCat("no ", name), event);
  }
  for (const auto& [name, value] : event.items()) {
    if (wanted.count(name) == 0) return Wrong(absl::StrCat("a member ", name), event);
    const bool text = name == "ph" || name == "cat" || name == "name" || name == "id";
    const bool time = name == "ts" || name == "dur";
    const bool right = text             ? value.is_string() && !value.get<std::string>().empty()
                       : time           ? value.is_number() && value.get<double>() >= 0
                       : name == "args" ? value.is_object()
                                        : value.is_number_integer() && value.get<int>() >= 0;
    if (!right) return Wrong(absl::StrCat(name, " has another type"), event);
  }
  return absl::OkStatus();
}

// To the nanosecond.
int64_t Nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1e3);
}

class Checker {
 public:
  absl::Status Add(const Json& event) {
    if (!event.is_object() || !event.contains("ph") || !event["ph"].is_string())
      return Wrong("no type", event);
    const std::string type = event["ph"];
    if (type == "M") return AddMetadata(event);
    if (type == "X" || type == "B") return AddSlice(event, type == "X");
    if (type == "b") return AddBegin(event);
    if (type == "e") return AddEnd(event);
    return Wrong("an unknown type", event);
  }

  absl::Status Finish() const {
    for (const auto& [pid, names] : metadata_) {
      if (names != std::set<std::string>{"process_name", "thread_name"})
        return Wrong(absl::StrCat("names of process ", pid));
    }
    for (const auto& [pid, sums] : sums_) {
      if (metadata_.count(pid) == 0) return Wrong(absl::StrCat("process ", pid, " has no name"));
    }
    return absl::OkStatus();
  }
  const std::map<int, FileTraffic>& sums() const { return sums_; }

 private:
  absl::Status AddMetadata(const Json& event) {
    DT_RETURN_IF_ERROR(CheckMembers(event, {"ph", "pid", "tid", "name", "args"}));
    if (!event["args"].contains("name") || !event["args"]["name"].is_string())
      return Wrong("no name", event);
    if (!metadata_[event["pid"]].insert(event["name"]).second) return Wrong("a second name", event);
    sums_[event["pid"]];
    return absl::OkStatus();
  }

  // Events of a thread come in the order of their beginnings.
  absl::Status AddSlice(const Json& event, bool complete) {
    std::set<std::string> members = {"ph", "pid", "tid", "cat", "name", "ts", "args"};
    if (complete) members.insert("dur");
    DT_RETURN_IF_ERROR(CheckMembers(event, members));
    std::vector<int64_t>& open = open_[event["pid"]];
    const int64_t start = Nanoseconds(event["ts"]);
    const int64_t end = complete ? start + Nanoseconds(event["dur"]) : INT64_MAX;
    int64_t& last = last_[event["pid"]];
    if (start < last) return Wrong("it begins before the one before it", event);
    last = start;
    while (!open.empty() && open.back() <= start && open.back() < end) open.pop_back();
    if (!open.empty() && end > open.back()) return Wrong("it ends after what it began in", event);
    open.push_back(end);
    return Sum(event);
  }

  absl::Status AddBegin(const Json& event) {
    DT_RETURN_IF_ERROR(
        CheckMembers(event, {"ph", "pid", "tid", "cat", "name", "ts", "id", "args"}));
    if (!begun_.emplace(event["id"], event).second) return Wrong("a second beginning", event);
    return Sum(event);
  }

  absl::Status AddEnd(const Json& event) {
    DT_RETURN_IF_ERROR(CheckMembers(event, {"ph", "pid", "tid", "cat", "name", "ts", "id"}));
    const auto begun = begun_.find(event["id"]);
    if (begun == begun_.end()) return Wrong("it never began", event);
    if (!ended_.insert(event["id"]).second) return Wrong("a second end", event);
    for (const char* name : {"pid", "tid", "cat", "name"}) {
      if (event[name] != begun->second[name]) return Wrong("it began as another", event);
    }
    if (Nanoseconds(event["ts"]) < Nanoseconds(begun->second["ts"]))
      return Wrong("it ends before it begins", event);
    return absl::OkStatus();
  }

  absl::Status Sum(const Json& event) {
    const Json& args = event["args"];
    sums_[event["pid"]];
    if (!args.contains("path") || !args["path"].is_string()) return Wrong("no path", event);
    if (event["cat"] == "redistribution") {
      for (const char* name : {"why", "from", "to", "tensor"}) {
        if (!args.contains(name) || !args[name].is_string() || args[name] == "")
          return Wrong(absl::StrCat("no ", name), event);
      }
    }
    if (event["cat"] != "exchange") return absl::OkStatus();
    for (const char* name : {"calls", "messages", "bytes", "wait_ns"}) {
      if (!args.contains(name) || !args[name].is_number_integer() || args[name] < 0)
        return Wrong(absl::StrCat("no ", name), event);
    }
    const CommunicatorTraffic more = {args["calls"], args["messages"], args["bytes"]};
    if (more == CommunicatorTraffic()) return absl::OkStatus();
    CommunicatorTraffic& sum = sums_[event["pid"]][{args["axes"], args["collective"]}];
    sum.calls += more.calls;
    sum.messages += more.messages;
    sum.bytes += more.bytes;
    return absl::OkStatus();
  }

  std::map<int, std::set<std::string>> metadata_;
  std::map<int, FileTraffic> sums_;
  std::map<int, std::vector<int64_t>> open_;  // by thread: when those that are open end
  std::map<int, int64_t> last_;
  std::map<std::string, Json> begun_;
  std::set<std::string> ended_;
};

std::string TextOf(const TrafficTable& table) {
  std::string text;
  for (const auto& [key, sum] : table) {
    absl::StrAppend(&text, " ", ToString(key.second), "(", key.first, ") ", sum.calls, "/",
                    sum.messages, "/", sum.bytes);
  }
  return text;
}

absl::Status CheckWithinParent(const RankTrace& trace, size_t i) {
  const TraceEvent& event = trace.events[i];
  if (event.parent < 0) return absl::OkStatus();
  if (event.parent >= static_cast<int64_t>(i)) return Wrong("a parent that began later");
  const TraceEvent& parent = trace.events[event.parent];
  if (event.start_ns < parent.start_ns) return Wrong("it began before its parent");
  if (event.asynchronous || !event.complete() || !parent.complete()) return absl::OkStatus();
  if (event.start_ns + event.duration_ns <= parent.start_ns + parent.duration_ns)
    return absl::OkStatus();
  return Wrong(absl::StrCat(ToString(event.kind), " ", event.name, " ended after ",
                            ToString(parent.kind), " ", parent.name));
}

}  // namespace

absl::Status CheckTrace(Context& context) {
  const RankTrace trace = context.trace();
  if (trace.dropped > 0) return Wrong("events were dropped");
  for (size_t i = 0; i < trace.events.size(); ++i) {
    DT_RETURN_IF_ERROR(CheckWithinParent(trace, i));
  }
  const TrafficTable sums = trace.Traffic(), counted = context.communicator().traffic();
  if (sums == counted) return absl::OkStatus();
  return Wrong(absl::StrCat("it has", TextOf(sums), ", and counted are", TextOf(counted)));
}

FileTraffic AsInFile(const TrafficTable& table) {
  FileTraffic traffic;
  for (const auto& [key, sum] : table) {
    traffic[{key.first, std::string(ToString(key.second))}] = sum;
  }
  return traffic;
}

absl::StatusOr<std::map<int, FileTraffic>> CheckChromeTrace(absl::string_view text) {
  const Json file = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("traceEvents") || !file["traceEvents"].is_array())
    return Wrong("no object with a list of events");
  Checker checker;
  for (const Json& event : file["traceEvents"]) DT_RETURN_IF_ERROR(checker.Add(event));
  DT_RETURN_IF_ERROR(checker.Finish());
  return checker.sums();
}

}  // namespace dtensor
