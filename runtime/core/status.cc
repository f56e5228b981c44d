#include "dtensor/runtime/core/status.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/shortened.h"

namespace dtensor {

absl::Status InvalidArgument(std::initializer_list<absl::string_view> pieces) {
  return absl::InvalidArgumentError(absl::StrJoin(
      pieces, "",
      [](std::string* out, absl::string_view piece) { out->append(Shortened(piece)); }));
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: dtensor broke its own rule: %s\n", file, line, condition);
  std::abort();
}

void RequireFailed(const char* message) {
  std::fprintf(stderr, "dtensor: %s\n", message);
  std::abort();
}

}  // namespace internal
}  // namespace dtensor
