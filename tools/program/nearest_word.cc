#include "dtensor/tools/program/nearest_word.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

// Optimal string alignment: the Levenshtein distance, with a swap of neighbours as one change.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t changed = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, changed});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string NearestWord(absl::string_view word, absl::Span<const std::string> words) {
  constexpr size_t kLongest = 100;  // no flag is longer; the table has its square
  if (word.size() > kLongest) return "";
  std::string nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& other : words) {
    const size_t distance = Distance(word, other);
    if (distance >= least || distance >= word.size()) continue;
    least = distance;
    nearest = other;
  }
  return nearest;
}

std::string DidYouMean(absl::string_view word, absl::Span<const std::string> words) {
  const std::string nearest = NearestWord(word, words);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

}  // namespace dtensor
