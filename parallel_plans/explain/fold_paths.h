// Folds things of a model whose paths differ only in the layer's number into one.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_FOLD_PATHS_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_FOLD_PATHS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

struct FoldedPath {
  std::string path;             // "layers.0..31.mlp"
  std::vector<size_t> members;  // their indices, by number
};

// Folds paths that differ only in their first numeric component: runs of successive numbers whose
// things are alike, as judged by `alike`, which gets indices in `paths`. The results are ordered by
// the first member of their form, and results of the same form stand next to each other.
std::vector<FoldedPath> FoldPaths(absl::Span<const std::string> paths,
                                  const std::function<bool(size_t a, size_t b)>& alike);

// Whether a path component is an index in a list: digits only.
bool IsNumber(absl::string_view component);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FOLD_PATHS_H_
