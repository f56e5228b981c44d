// Patterns of module paths: '*' within one component, {a,b} alternatives.
#ifndef DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_
#define DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtensor {

// "layers.*.w{q,k}" matches "layers.0.wq". "", the path of the model itself, is matched by
// "" and by an empty alternative, but not by '*'. Alternatives do not nest: a pattern with
// a '{' that is not closed before the next one matches nothing. The cost is at most one step
// for each pair of a character of the pattern and one of the path.
bool PathMatches(absl::string_view pattern, absl::string_view path);

// Whether every '{' is closed before the next.
bool IsSoundPattern(absl::string_view pattern);

// Returns the path with the smallest edit distance to `pattern`; only the first 1000 characters of
// either count. "" if there are no paths.
std::string NearestPath(absl::string_view pattern, absl::Span<const std::string> paths);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_
