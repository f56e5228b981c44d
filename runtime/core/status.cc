#include "dtensor/runtime/core/status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_join.h"

namespace dtensor {

absl::Status InvalidArgument(std::initializer_list<absl::string_view> pieces) {
  return absl::InvalidArgumentError(absl::StrJoin(pieces, ""));
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: dtensor broke its own rule: %s\n", file, line, condition);
  std::abort();
}

}  // namespace internal
}  // namespace dtensor
