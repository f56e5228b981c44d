// A number of bytes, as written in a flag.
#include "dtensor/tools/program/byte_size.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  const absl::StatusOr<int64_t> bytes = ParseByteSize(input);
  if (!IsRead(bytes)) return;
  Require(*bytes >= 0, "a size is not negative");
  RequireSame(*bytes, ParseByteSize(absl::StrCat(*bytes, " B")), absl::StrCat(*bytes));
}

}  // namespace dtensor::fuzz
