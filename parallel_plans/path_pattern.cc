#include "dtensor/parallel_plans/path_pattern.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor {

bool PathMatches(absl::string_view pattern, absl::string_view path) {
  if (pattern.empty()) return path.empty();
  const char first = pattern[0];
  if (first == '{') {
    const size_t close = pattern.find('}');
    if (close == absl::string_view::npos) return false;
    for (absl::string_view choice : absl::StrSplit(pattern.substr(1, close - 1), ',')) {
      if (PathMatches(absl::StrCat(choice, pattern.substr(close + 1)), path)) return true;
    }
    return false;
  }
  if (first == '*') {
    for (size_t taken = 0;; ++taken) {
      if (PathMatches(pattern.substr(1), path.substr(taken))) return true;
      if (taken == path.size() || path[taken] == '.') return false;
    }
  }
  return !path.empty() && path[0] == first && PathMatches(pattern.substr(1), path.substr(1));
}

namespace {

// Levenshtein distance, by rows.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestPath(absl::string_view pattern, absl::Span<const std::string> paths) {
  std::string nearest;
  size_t least = static_cast<size_t>(-1);
  for (const std::string& path : paths) {
    const size_t distance = Distance(pattern, path);
    if (distance >= least) continue;
    least = distance;
    nearest = path;
  }
  return nearest;
}

}  // namespace dtensor
