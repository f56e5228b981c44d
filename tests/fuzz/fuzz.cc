#include "dtensor/tests/fuzz/fuzz.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor::fuzz {
namespace {

constexpr size_t kLongestMessage = 4096;

bool IsRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kResourceExhausted;
}

}  // namespace

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void RequireRefusal(const absl::Status& status) {
  const std::string start(status.message().substr(0, 200));
  Require(IsRefusal(status.code()), absl::StrCat("a refusal, not ", status.code(), ": ", start));
  Require(!status.message().empty(), "a refusal has a message");
  Require(status.message().size() <= kLongestMessage,
          absl::StrCat("a message of ", status.message().size(), " characters fits: ", start));
}

std::vector<absl::string_view> Lines(absl::string_view input, size_t count) {
  std::vector<absl::string_view> lines = absl::StrSplit(input, '\n');
  lines.resize(count);
  return lines;
}

}  // namespace dtensor::fuzz
