#include "dtensor/tools/program/flag_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/tools/program/byte_size.h"
#include "dtensor/tools/program/nearest_word.h"

namespace dtensor {
namespace {

// The functions below replace a value by a text that CLI11 cannot misread (it would read 010 as 8).
// They return what is wrong, or an empty text.

template <typename T>
std::string ReadWhole(std::string& text, absl::string_view wanted) {
  T value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::StrCat("\"", Shortened(text), "\" is no whole number ", wanted, ", such as 8");
  }
  text = absl::StrCat(value);
  return "";
}

std::string ReadReal(std::string& text) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && std::isfinite(value)) return "";
  return absl::StrCat("\"", Shortened(text), "\" is no finite number, such as 0.5 or 3e-4");
}

std::string ReadBytes(std::string& text) {
  const absl::StatusOr<int64_t> bytes = ParseByteSize(text);
  if (!bytes.ok()) return std::string(bytes.status().message());
  text = absl::StrCat(*bytes);
  return "";
}

std::string ReadWord(const std::string& text, std::vector<std::string> words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return "";
  const std::string nearest = DidYouMean(text, words);
  const std::string last = words.back();
  words.pop_back();
  return absl::StrCat("there is no \"", Shortened(text), "\"", nearest, "; take ",
                      absl::StrJoin(words, ", "), " or ", last);
}

// Returns the function that reads values of the option's type; null: they are taken as they are.
std::function<std::string(std::string&)> ReaderOf(const CLI::Option& option) {
  const std::string all = option.get_type_name();
  const std::string type = all.substr(0, all.find(':'));  // of "INT:INT in [1 - 9]" as well
  if (type == "INT") {
    return [](std::string& text) { return ReadWhole<int64_t>(text, "from -2^63 to 2^63 - 1"); };
  }
  if (type == "UINT") {
    return [](std::string& text) { return ReadWhole<uint64_t>(text, "from 0 to 2^64 - 1"); };
  }
  if (type == "FLOAT") return ReadReal;
  if (type == "BYTES") return ReadBytes;
  const std::vector<std::string> words = WordsOf(option);
  if (words.empty()) return nullptr;
  return [words](std::string& text) { return ReadWord(text, words); };
}

}  // namespace

std::vector<std::string> WordsOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (!absl::StrContains(type, '|')) return {};
  return absl::StrSplit(type, '|');
}

void CheckValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (auto reader = ReaderOf(*option)) option->transform(CLI::Validator(reader, ""));
  }
  for (CLI::App* command : app.get_subcommands({})) CheckValues(*command);
}

}  // namespace dtensor
