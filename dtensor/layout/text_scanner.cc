#include "dtensor/layout/text_scanner.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace dtensor {
namespace {

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }

}  // namespace

bool IsName(absl::string_view name) {
  if (name.empty() || name == "_" || absl::ascii_isdigit(name[0])) return false;
  return std::all_of(name.begin(), name.end(), IsNameChar);
}

void TextScanner::SkipBlanks() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

bool TextScanner::Eat(absl::string_view token) {
  SkipBlanks();
  return absl::ConsumePrefix(&rest_, token);
}

bool TextScanner::EatInt(int64_t* value) {
  SkipBlanks();
  size_t end = !rest_.empty() && rest_[0] == '-' ? 1 : 0;
  while (end < rest_.size() && absl::ascii_isdigit(rest_[end])) ++end;
  if (!absl::SimpleAtoi(rest_.substr(0, end), value)) return false;
  rest_.remove_prefix(end);
  return true;
}

absl::string_view TextScanner::EatName() {
  SkipBlanks();
  if (rest_.empty() || absl::ascii_isdigit(rest_[0])) return {};
  const auto end = std::find_if_not(rest_.begin(), rest_.end(), IsNameChar);
  const absl::string_view name = rest_.substr(0, end - rest_.begin());
  rest_.remove_prefix(name.size());
  return name;
}

bool TextScanner::AtEnd() {
  SkipBlanks();
  return rest_.empty();
}

}  // namespace dtensor
