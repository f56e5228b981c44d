#include "dtensor/runtime/core/dims.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

int64_t NumElements(absl::Span<const int64_t> shape) {
  // Looked for first: the product of the others may not fit.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

Dims RowMajorStrides(absl::Span<const int64_t> shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
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
    // SimpleAtoi alone would take signs.
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
