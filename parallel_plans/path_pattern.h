// Patterns of module paths: '*' within one component, {a,b} alternatives.
#ifndef DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_
#define DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtensor {

// "layers.*.w{q,k}" matches "layers.0.wq". "" matches "" alone. Alternatives do not nest: a pattern
// with a '{' that is not closed before the next matches nothing. Costs are those of a step for each
// pair of a pattern's and a path's character, at most.
bool PathMatches(absl::string_view pattern, absl::string_view path);

// The path with the smallest edit distance to `pattern`, of both at most 1000 characters; "" when
// there are none.
std::string NearestPath(absl::string_view pattern, absl::Span<const std::string> paths);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PATH_PATTERN_H_
