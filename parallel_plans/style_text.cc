#include "dtensor/parallel_plans/style_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string ValueText(const StyleArgument& argument) {
  if (const auto* placement = std::get_if<Placement>(&argument.value)) return placement->ToString();
  if (const auto* text = std::get_if<std::string>(&argument.value)) {
    return internal::QuotedText(*text);
  }
  if (const auto* number = std::get_if<int64_t>(&argument.value)) return absl::StrCat(*number);
  return "-";
}

std::string ArgumentText(const StyleArgument& argument) {
  return absl::StrCat(argument.key, argument.key.empty() ? "" : " ", ValueText(argument));
}

// The position of the first ',' or ')' that is not inside parentheses.
size_t EndOfPlacement(absl::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (depth == 0 && (text[i] == ',' || text[i] == ')')) return i;
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
  }
  return text.size();
}

// Reads a name that is followed by a value. Otherwise reads nothing: R and S(1) are values.
std::string ReadKey(TextScanner& in) {
  TextScanner after = in;
  const absl::string_view name = after.EatName();
  if (name.empty() || (name[0] >= '0' && name[0] <= '9') || after.AtEnd()) return "";
  const char next = after.rest()[0];
  if (next == ',' || next == ')' || next == '(') return "";
  in = after;
  return std::string(name);
}

bool ReadArgument(TextScanner& in, std::vector<StyleArgument>& arguments) {
  std::string key = ReadKey(in);
  if (in.AtEnd()) return false;
  const absl::string_view rest = in.rest();
  if (rest[0] == '"') {
    std::string text;
    if (!internal::ReadQuotedText(in, text)) return false;
    arguments.emplace_back(std::move(key), std::move(text));
    return true;
  }
  int64_t number;
  if (in.EatInt(&number)) {
    arguments.emplace_back(std::move(key), number);
    return true;
  }
  if (in.Eat("-")) {
    arguments.emplace_back(std::move(key), std::nullopt);
    return true;
  }
  const size_t end = EndOfPlacement(rest);
  const absl::StatusOr<Placement> placement = Placement::Parse(rest.substr(0, end));
  if (!placement.ok()) return false;
  arguments.emplace_back(std::move(key), *placement);
  in = TextScanner(rest.substr(end));
  return true;
}

}  // namespace

StyleArgument::StyleArgument(std::string key, std::optional<Placement> placement)
    : key(std::move(key)) {
  if (placement) value = *placement;
}
StyleArgument::StyleArgument(std::string key, std::string text)
    : key(std::move(key)), value(std::move(text)) {}
StyleArgument::StyleArgument(std::string key, int64_t number)
    : key(std::move(key)), value(number) {}

std::string StyleText::ToString() const {
  std::string out = absl::StrCat(name, "(", internal::QuotedText(axis));
  for (const StyleArgument& argument : arguments) {
    absl::StrAppend(&out, ", ", ArgumentText(argument));
  }
  return absl::StrCat(out, ")");
}

template <typename T>
std::optional<T> ArgumentReader::Take(absl::string_view key) {
  std::vector<StyleArgument>& arguments = text_.arguments;
  const auto found =
      std::find_if(arguments.begin(), arguments.end(),
                   [&](const StyleArgument& argument) { return argument.key == key; });
  if (found == arguments.end()) return std::nullopt;
  const StyleArgument argument = std::move(*found);
  arguments.erase(found);
  if (std::holds_alternative<std::monostate>(argument.value)) return std::nullopt;
  if (const T* value = std::get_if<T>(&argument.value)) return *value;
  if (wrong_.empty()) wrong_ = ArgumentText(argument);
  return std::nullopt;
}

std::optional<Placement> ArgumentReader::TakePlacement(absl::string_view key) {
  return Take<Placement>(key);
}
std::optional<std::string> ArgumentReader::TakeString(absl::string_view key) {
  return Take<std::string>(key);
}
std::optional<int64_t> ArgumentReader::TakeNumber(absl::string_view key) {
  return Take<int64_t>(key);
}

absl::Status ArgumentReader::Done() const {
  const std::string wrong =
      !wrong_.empty() || text_.arguments.empty() ? wrong_ : ArgumentText(text_.arguments[0]);
  if (wrong.empty()) return absl::OkStatus();
  return InvalidArgument({text_.name, " does not take the argument ", wrong});
}

namespace internal {

std::string QuotedText(absl::string_view text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

bool ReadQuotedText(TextScanner& in, std::string& value) {
  TextScanner after = in;
  if (!after.Eat("\"")) return false;
  const absl::string_view rest = after.rest();
  size_t end = 0;
  while (end < rest.size() && rest[end] != '"') end += rest[end] == '\\' ? 2 : 1;
  if (end >= rest.size() || !absl::CUnescape(rest.substr(0, end), &value)) return false;
  in = TextScanner(rest.substr(end + 1));
  return true;
}

bool ReadStyleText(TextScanner& in, StyleText& text) {
  text.name = std::string(in.EatName());
  if (text.name.empty() || !in.Eat("(") || !ReadQuotedText(in, text.axis)) return false;
  while (in.Eat(",")) {
    if (!ReadArgument(in, text.arguments)) return false;
  }
  return in.Eat(")");
}

}  // namespace internal
}  // namespace dtensor
