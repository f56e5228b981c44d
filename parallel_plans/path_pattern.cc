#include "dtensor/parallel_plans/path_pattern.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dtensor {
namespace {

// A pattern as an automaton whose states are positions in it. Transitions that read nothing only go
// forward, so one pass from the left follows them all.
class Pattern {
 public:
  explicit Pattern(absl::string_view text) : text_(text), after_(text.size()) {
    for (size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] != '{') continue;
      const size_t close = text_.find_first_of("{}", i + 1);
      if (close == absl::string_view::npos || text_[close] == '{') {
        sound_ = false;
        return;
      }
      for (; i <= close; ++i) after_[i] = close + 1;
      i = close;
    }
  }

  bool is_sound() const { return sound_; }

  bool Matches(absl::string_view path) const {
    if (!sound_) return false;
    Places at(text_.size() + 1), next(text_.size() + 1);
    at[0] = true;
    if (path.empty()) {
      FollowWithoutReading(at, /*stars=*/false);
      return at.back();
    }
    for (const char c : path) {
      FollowWithoutReading(at);
      std::fill(next.begin(), next.end(), false);
      for (size_t i = 0; i < text_.size(); ++i) {
        if (!at[i] || IsSyntax(i)) continue;
        if (text_[i] == '*') {
          if (c != '.') next[i] = true;
        } else if (text_[i] == c) {
          next[i + 1] = true;
        }
      }
      at.swap(next);
    }
    FollowWithoutReading(at);
    return at.back();
  }

 private:
  using Places = std::vector<uint8_t>;

  // A brace, or a comma between braces.
  bool IsSyntax(size_t i) const {
    return after_[i] > 0 && (text_[i] == '{' || text_[i] == ',' || text_[i] == '}');
  }

  // `stars`: whether a '*' may be nothing.
  void FollowWithoutReading(Places& at, bool stars = true) const {
    for (size_t i = 0; i < text_.size(); ++i) {
      if (!at[i]) continue;
      if (text_[i] == '*' && stars) at[i + 1] = true;
      if (!IsSyntax(i)) continue;
      if (text_[i] != '{') {
        at[after_[i]] = true;  // the end of an alternative
        continue;
      }
      at[i + 1] = true;
      for (size_t j = i + 1; j < after_[i]; ++j) {
        if (text_[j] == ',') at[j + 1] = true;
      }
    }
  }

  const absl::string_view text_;
  std::vector<size_t> after_;  // by position: where the braces around it end; 0 outside of braces
  bool sound_ = true;          // every '{' is closed before the next
};

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

bool PathMatches(absl::string_view pattern, absl::string_view path) {
  return Pattern(pattern).Matches(path);
}

bool IsSoundPattern(absl::string_view pattern) { return Pattern(pattern).is_sound(); }

std::string NearestPath(absl::string_view pattern, absl::Span<const std::string> paths) {
  constexpr size_t kLongest = 1000;  // bounds the time; typing errors are in shorter texts
  std::string nearest;
  size_t least = static_cast<size_t>(-1);
  for (const std::string& path : paths) {
    const size_t distance = Distance(pattern.substr(0, kLongest), path.substr(0, kLongest));
    if (distance >= least) continue;
    least = distance;
    nearest = path;
  }
  return nearest;
}

}  // namespace dtensor
