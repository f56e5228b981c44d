#include "dtensor/tools/program/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"

namespace dtensor {

absl::Status Print(absl::string_view text) {
  // Either may fail, and the second does not fail again for what the first could not write.
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write to stdout: ", std::strerror(errno)));
}

std::string OneLine(absl::string_view message) {
  std::string line(absl::StripAsciiWhitespace(message));
  for (char& c : line) {
    if (absl::ascii_iscntrl(c)) c = ' ';
  }
  return line;
}

void PrintError(absl::string_view name, absl::string_view message) {
  std::fputs(absl::StrCat(name, ": ", OneLine(message), "\n").c_str(), stderr);
}

absl::Status CheckOutputFile(absl::string_view flag, const std::string& path) {
  const absl::Status writable = CheckWritable(path);
  if (writable.ok()) return writable;
  return InvalidArgument({flag, ": ", writable.message()});
}

}  // namespace dtensor
