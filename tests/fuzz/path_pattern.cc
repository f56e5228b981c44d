// A pattern, and below it paths, a line each.
#include "dtensor/parallel_plans/path_pattern.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

// The patterns without braces that `pattern` stands for. None where braces nest or are not closed,
// or where there are too many.
std::vector<std::string> WithoutBraces(absl::string_view pattern) {
  constexpr size_t kMost = 64;
  std::vector<std::string> patterns = {""};
  while (true) {
    const size_t open = pattern.find('{');
    for (std::string& start : patterns) absl::StrAppend(&start, pattern.substr(0, open));
    if (open == absl::string_view::npos) return patterns;
    const size_t close = pattern.find_first_of("{}", open + 1);
    if (close == absl::string_view::npos || pattern[close] == '{') return {};
    const std::vector<absl::string_view> choices =
        absl::StrSplit(pattern.substr(open + 1, close - open - 1), ',');
    if (patterns.size() * choices.size() > kMost) return {};
    std::vector<std::string> longer;
    for (const std::string& start : patterns) {
      for (const absl::string_view choice : choices) longer.push_back(absl::StrCat(start, choice));
    }
    patterns = std::move(longer);
    pattern.remove_prefix(close + 1);
  }
}

// By a table: row i says which beginnings of the path the first i characters match. A '*' is not
// the empty path.
bool MatchesPlain(absl::string_view pattern, absl::string_view path) {
  std::vector<bool> row(path.size() + 1);
  row[0] = true;
  for (const char p : pattern) {
    std::vector<bool> next(path.size() + 1);
    for (size_t j = 0; j <= path.size(); ++j) {
      if (p == '*') {
        next[j] = (row[j] && !path.empty()) || (j > 0 && next[j - 1] && path[j - 1] != '.');
      } else {
        next[j] = j > 0 && row[j - 1] && path[j - 1] == p;
      }
    }
    row = std::move(next);
  }
  return row.back();
}

void TryMatch(absl::string_view pattern, absl::string_view path) {
  const bool matches = PathMatches(pattern, path);
  const std::vector<std::string> plain = WithoutBraces(pattern);
  if (plain.empty() || pattern.size() * path.size() > 4096) return;
  bool expected = false;
  for (const std::string& one : plain) expected = expected || MatchesPlain(one, path);
  Require(matches == expected,
          absl::StrCat(pattern, expected ? " matches " : " leaves out ", path));
}

}  // namespace

void Try(absl::string_view input) {
  std::vector<std::string> paths = absl::StrSplit(input, '\n');
  const std::string pattern = paths.front();
  paths.erase(paths.begin());
  if (paths.size() > 16) paths.resize(16);
  for (const std::string& path : paths) TryMatch(pattern, path);
  const std::string nearest = NearestPath(pattern, paths);
  Require(paths.empty() || std::find(paths.begin(), paths.end(), nearest) != paths.end(),
          "the nearest path is one of those there are");
}

}  // namespace dtensor::fuzz
