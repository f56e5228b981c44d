#include "dtensor/runtime/core/dims.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// a * b, or the largest int64 on overflow.
int64_t Times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

}  // namespace

int64_t NumElements(absl::Span<const int64_t> shape) {
  // Zeros are looked for first: the product of the other sizes may overflow.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t n = 1;
  for (int64_t size : shape) n = Times(n, size);
  return n;
}

absl::StatusOr<int64_t> CheckedNumElements(absl::string_view what,
                                           absl::Span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t size : shape) {
    if (size < 0) {
      return InvalidArgument({what, ": no tensor has shape ", DimsToString(shape), ": the size ",
                              absl::StrCat(size), " is negative; a size is at least 0"});
    }
    n = Times(n, std::max<int64_t>(size, 1));
  }
  if (n <= kMaxElements) return NumElements(shape);
  return InvalidArgument({what, ": no tensor has shape ", DimsToString(shape),
                          ": it has more than 2^56 elements (sizes of 0 count as 1); make it ",
                          "smaller"});
}

Dims RowMajorStrides(absl::Span<const int64_t> shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride = Times(stride, std::max<int64_t>(shape[i], 1));
  }
  return strides;
}

std::string DimsToString(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::StatusOr<Dims> ParseDims(absl::string_view text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  const bool opened = absl::ConsumePrefix(&list, "[");
  const bool closed = absl::ConsumeSuffix(&list, "]");
  if (opened != closed) {
    return InvalidArgument({"the brackets of \"", text, "\" do not match; write \"[2, 3]\""});
  }
  Dims dims;
  list = absl::StripAsciiWhitespace(list);
  if (list.empty()) return dims;
  for (absl::string_view piece : absl::StrSplit(list, ',')) {
    const absl::string_view digits = absl::StripAsciiWhitespace(piece);
    int64_t size = 0;
    // SimpleAtoi alone would accept signs.
    if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(digits, &size)) {
      return InvalidArgument(
          {"\"", digits, "\" in \"", text,
           "\" is no size; sizes are whole numbers from 0 on, as in \"[2, 3]\""});
    }
    dims.push_back(size);
  }
  return dims;
}

}  // namespace dtensor
