// Things of a model that differ in the number of their layer alone, as one.
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

// Paths that differ in their first component that is a number, alone, in runs of successive numbers
// whose things are alike: by their order and places in `paths`. In the order of first members, but
// what has one form stands together.
std::vector<FoldedPath> FoldPaths(absl::Span<const std::string> paths,
                                  const std::function<bool(size_t a, size_t b)>& alike);

// Of a place in a list: digits alone.
bool IsNumber(absl::string_view component);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FOLD_PATHS_H_
