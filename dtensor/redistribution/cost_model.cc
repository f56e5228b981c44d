#include "dtensor/redistribution/cost_model.h"

#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status ParseRate(absl::string_view word, double& rate) {
  if (absl::SimpleAtod(word, &rate) && std::isfinite(rate) && rate > 0) return absl::OkStatus();
  return InvalidArgument({"\"", word, "\" is not a rate above 0, in GB/s or GF/s"});
}

absl::Status ParseLatency(absl::string_view word, double& latency) {
  if (absl::SimpleAtod(word, &latency) && std::isfinite(latency) && latency >= 0) {
    return absl::OkStatus();
  }
  return InvalidArgument({"\"", word, "\" is not a latency of 0 or more microseconds"});
}

// The shortest text that reads back as the same number.
std::string Shortest(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

}  // namespace

const LinkSpeed& CostModel::Of(absl::string_view axis) const {
  const auto found = axes_.find(axis);
  return found == axes_.end() ? every_other_ : found->second;
}

absl::StatusOr<CostModel> CostModel::Parse(absl::string_view text) {
  CostModel table;
  bool has_default = false;
  const auto parse_line = [&](absl::Span<const absl::string_view> words) -> absl::Status {
    if (words[0] == "copy" && words.size() == 2) return ParseRate(words[1], table.copy_);
    if (words[0] == "reduce" && words.size() == 2) return ParseRate(words[1], table.reduce_);
    if (words[0] == "multiply" && words.size() == 2) return ParseRate(words[1], table.multiply_);
    if (words[0] != "link" || words.size() != 4) {
      return InvalidArgument(
          {"expected \"link AXIS MICROSECONDS GB/S\", \"copy GB/S\", \"reduce GB/S\" or "
           "\"multiply GF/S\", got \"",
           absl::StrJoin(words, " "), "\""});
    }
    LinkSpeed link;
    DT_RETURN_IF_ERROR(ParseLatency(words[2], link.latency_us));
    DT_RETURN_IF_ERROR(ParseRate(words[3], link.gb_per_second));
    const bool every_other = words[1] == "*";
    if (every_other ? has_default : table.axes_.contains(words[1])) {
      return InvalidArgument({"axis \"", words[1], "\" has a link already"});
    }
    if (!every_other) {
      table.Set(std::string(words[1]), link);
    } else {
      table.SetDefault(link);
      has_default = true;
    }
    return absl::OkStatus();
  };
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (absl::Status status = parse_line(words); !status.ok()) {
      return InvalidArgument({"links, line ", absl::StrCat(number), ": ", status.message()});
    }
  }
  return table;
}

std::string CostModel::ToString() const {
  std::string text;
  const auto add = [&text](absl::string_view axis, const LinkSpeed& link) {
    absl::StrAppend(&text, "link ", axis, " ", Shortest(link.latency_us), " ",
                    Shortest(link.gb_per_second), "\n");
  };
  for (const auto& [axis, link] : axes_) add(axis, link);
  add("*", every_other_);
  absl::StrAppend(&text, "copy ", Shortest(copy_), "\nreduce ", Shortest(reduce_), "\nmultiply ",
                  Shortest(multiply_), "\n");
  return text;
}

}  // namespace dtensor
