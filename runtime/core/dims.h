// Shapes and strides: short vectors of int64, in elements.
#ifndef DTENSOR_RUNTIME_CORE_DIMS_H_
#define DTENSOR_RUNTIME_CORE_DIMS_H_

#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

using Dims = absl::InlinedVector<int64_t, 4>;

// A tensor has at most this many elements, where a size of 0 counts as 1. This ensures that
// elements, strides and bytes, and the sums and products of a few of them from which layouts are
// computed, fit an int64.
inline constexpr int64_t kMaxElements = int64_t{1} << 56;

// The product of the sizes: 1 for a scalar; 0 if any size is 0. If it does not fit an int64,
// returns 2^63 - 1, which no tensor has. For sizes that come from elsewhere, use
// CheckedNumElements.
int64_t NumElements(absl::Span<const int64_t> shape);
// As NumElements, if a tensor may have this shape. Errors: kInvalidArgument for a negative size,
// and for more than kMaxElements; the message begins with `what` and names the shape.
absl::StatusOr<int64_t> CheckedNumElements(absl::string_view what, absl::Span<const int64_t> shape);
// A size of 0 counts as 1 here, so that no stride is 0: [2, 0, 3] has strides [3, 3, 1].
Dims RowMajorStrides(absl::Span<const int64_t> shape);
std::string DimsToString(absl::Span<const int64_t> dims);  // "[2, 3]"; a scalar is "[]"
// Accepts "[2, 3]", "2,3", "[]" and "". Errors: kInvalidArgument for negative or unreadable sizes.
absl::StatusOr<Dims> ParseDims(absl::string_view text);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_DIMS_H_
