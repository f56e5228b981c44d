#include "dtensor/tests/fuzz/flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace dtensor::fuzz {

Flags::Flags(absl::string_view input) {
  for (const absl::string_view line : absl::StrSplit(input, '\n')) {
    std::pair<std::string, std::string> flag = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    values_.insert(std::move(flag));
  }
}

std::optional<std::string> Flags::Text(absl::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::string Flags::TextOr(absl::string_view name, absl::string_view otherwise) const {
  return Text(name).value_or(std::string(otherwise));
}

std::optional<int64_t> Flags::Number(absl::string_view name) const {
  int64_t number = 0;
  return absl::SimpleAtoi(TextOr(name, ""), &number) ? std::optional(number) : std::nullopt;
}

}  // namespace dtensor::fuzz
