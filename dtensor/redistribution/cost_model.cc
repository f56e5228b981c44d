#include "dtensor/redistribution/cost_model.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/core/number_text.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

bool IsRate(double rate) { return std::isfinite(rate) && rate > 0; }
bool IsLatency(double latency) { return std::isfinite(latency) && latency >= 0; }

absl::Status ParseRate(absl::string_view word, double& rate) {
  if (absl::SimpleAtod(word, &rate) && IsRate(rate)) return absl::OkStatus();
  return InvalidArgument({"\"", word, "\" is not a rate above 0, in GB/s or GF/s"});
}

absl::Status ParseLatency(absl::string_view word, double& latency) {
  if (absl::SimpleAtod(word, &latency) && IsLatency(latency)) return absl::OkStatus();
  return InvalidArgument({"\"", word, "\" is not a latency of 0 or more microseconds"});
}

// The rate that a line of two words sets; null for other words.
double* RateOf(absl::string_view word, MachineRates& rates) {
  if (word == "copy") return &rates.copy_gb_per_second;
  if (word == "reduce") return &rates.reduce_gb_per_second;
  if (word == "multiply") return &rates.multiply_gf_per_second;
  if (word == "memory") return &rates.memory_gb_per_second;
  return nullptr;
}

absl::Status NoCost(absl::string_view words, double value, absl::string_view remedy) {
  return InvalidArgument({"costs: \"", words, "\" is set to ", absl::StrCat(value), "; ", remedy});
}

absl::Status CheckRate(absl::string_view words, double rate) {
  if (IsRate(rate)) return absl::OkStatus();
  return NoCost(words, rate, "take a rate above 0, in GB/s or GF/s");
}

absl::Status CheckLink(absl::string_view axis, const LinkSpeed& link) {
  if (IsRate(link.gb_per_second) && IsLatency(link.latency_us)) return absl::OkStatus();
  const std::string words = absl::StrCat("link ", axis);
  DT_RETURN_IF_ERROR(CheckRate(words, link.gb_per_second));
  return NoCost(words, link.latency_us, "take a latency of 0 or more microseconds");
}

// Reads lines into rates.
class Reader {
 public:
  explicit Reader(MachineRates& rates) : rates_(rates) {}

  absl::Status Line(absl::Span<const absl::string_view> words) {
    DT_RETURN_IF_ERROR(SayOnce(words));
    if (words.size() == 2) {
      if (double* rate = RateOf(words[0], rates_)) return ParseRate(words[1], *rate);
      if (words[0] == "call") return ParseLatency(words[1], rates_.call_us);
    }
    if (words[0] == "gemm" && words.size() == 3) return Gemm(words[1], words[2]);
    if (words[0] == "link" && words.size() == 4) return Link(words);
    return InvalidArgument(
        {"expected \"link AXIS MICROSECONDS GB/S\", \"copy GB/S\", \"reduce GB/S\", "
         "\"multiply GF/S\", \"gemm TYPE GF/S\", \"memory GB/S\" or \"call MICROSECONDS\", "
         "got \"",
         absl::StrJoin(words, " "), "\""});
  }

 private:
  // Refuses a line with the same subject as an earlier one.
  absl::Status SayOnce(absl::Span<const absl::string_view> words) {
    const bool is_of_some = words[0] == "gemm" || words[0] == "link";
    const std::string what = absl::StrJoin(words.subspan(0, is_of_some ? 2 : 1), " ");
    if (said_.insert(what).second) return absl::OkStatus();
    return InvalidArgument({"there is a line for \"", what, "\" already; keep one of them"});
  }

  absl::Status Gemm(absl::string_view type, absl::string_view rate) {
    DT_ASSIGN_OR_RETURN(const DType dtype, ParseDType(type));
    if (!IsFloat(dtype)) {
      return InvalidArgument({"there are no products of ", type, "; take f32, f64, bf16 or f16"});
    }
    return ParseRate(rate, rates_.gemm_gf_per_second[static_cast<size_t>(dtype)]);
  }

  absl::Status Link(absl::Span<const absl::string_view> words) {
    LinkSpeed link;
    DT_RETURN_IF_ERROR(ParseLatency(words[2], link.latency_us));
    DT_RETURN_IF_ERROR(ParseRate(words[3], link.gb_per_second));
    (words[1] == "*" ? rates_.every_other_link : rates_.links[std::string(words[1])]) = link;
    return absl::OkStatus();
  }

  MachineRates& rates_;
  std::set<std::string> said_;
};

}  // namespace

absl::StatusOr<CostModel> CostModel::Parse(absl::string_view text) {
  CostModel table;
  Reader reader(table.rates_);
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    if (absl::Status status = reader.Line(words); !status.ok()) {
      return InvalidArgument({"links, line ", absl::StrCat(number), ": ", status.message()});
    }
  }
  return table;
}

absl::Status CostModel::Check() const {
  for (const auto& [axis, link] : rates_.links) DT_RETURN_IF_ERROR(CheckLink(axis, link));
  DT_RETURN_IF_ERROR(CheckLink("*", rates_.every_other_link));
  DT_RETURN_IF_ERROR(CheckRate("copy", rates_.copy_gb_per_second));
  DT_RETURN_IF_ERROR(CheckRate("reduce", rates_.reduce_gb_per_second));
  DT_RETURN_IF_ERROR(CheckRate("multiply", rates_.multiply_gf_per_second));
  // These may be left out (0).
  for (size_t type = 0; type < rates_.gemm_gf_per_second.size(); ++type) {
    if (rates_.gemm_gf_per_second[type] == 0) continue;
    DT_RETURN_IF_ERROR(CheckRate(absl::StrCat("gemm ", dtensor::ToString(static_cast<DType>(type))),
                                 rates_.gemm_gf_per_second[type]));
  }
  if (rates_.memory_gb_per_second != 0) {
    DT_RETURN_IF_ERROR(CheckRate("memory", rates_.memory_gb_per_second));
  }
  if (IsLatency(rates_.call_us)) return absl::OkStatus();
  return NoCost("call", rates_.call_us, "take 0 or more microseconds");
}

CostModel CostModel::On(const DeviceMesh& mesh) const {
  CostModel on_mesh = *this;
  std::map<int, size_t> said_by;  // by axis: the size of the group whose line it got
  for (const auto& [name, link] : rates_.links) {
    const absl::StatusOr<AxisList> group = mesh.Find(name);
    if (!group.ok()) continue;
    for (const int axis : *group) {
      const std::string& own = mesh.axis_name(axis);
      if (rates_.links.contains(own)) continue;
      const auto [known, is_new] = said_by.emplace(axis, group->size());
      if (!is_new && known->second <= group->size()) continue;
      known->second = group->size();
      on_mesh.Set(own, link);
    }
  }
  return on_mesh;
}

std::string CostModel::ToString() const {
  std::string text;
  const auto add_link = [&text](absl::string_view axis, const LinkSpeed& link) {
    absl::StrAppend(&text, "link ", axis, " ", ExactText(link.latency_us), " ",
                    ExactText(link.gb_per_second), "\n");
  };
  // Leaves out what is not set.
  const auto add = [&text](absl::string_view words, double value) {
    if (value != 0) absl::StrAppend(&text, words, " ", ExactText(value), "\n");
  };
  for (const auto& [axis, link] : rates_.links) add_link(axis, link);
  add_link("*", rates_.every_other_link);
  add("copy", rates_.copy_gb_per_second);
  add("reduce", rates_.reduce_gb_per_second);
  add("multiply", rates_.multiply_gf_per_second);
  for (size_t type = 0; type < rates_.gemm_gf_per_second.size(); ++type) {
    add(absl::StrCat("gemm ", dtensor::ToString(static_cast<DType>(type))),
        rates_.gemm_gf_per_second[type]);
  }
  add("memory", rates_.memory_gb_per_second);
  add("call", rates_.call_us);
  return text;
}

}  // namespace dtensor
