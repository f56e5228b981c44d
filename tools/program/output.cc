#include "dtensor/tools/program/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"

namespace dtensor {

absl::Status Print(absl::string_view text) {
  // Written without the stream: a stream loses its buffer if a signal interrupts its write.
  if (std::fflush(stdout) == 0 && WriteAll(STDOUT_FILENO, text.data(), text.size())) {
    return absl::OkStatus();
  }
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
  const std::string line = absl::StrCat(name, ": ", OneLine(message), "\n");
  (void)!WriteAll(STDERR_FILENO, line.data(), line.size());
}

absl::Status CheckOutputFile(absl::string_view flag, const std::string& path) {
  const absl::Status writable = CheckWritable(path);
  if (writable.ok()) return writable;
  return InvalidArgument({flag, ": ", writable.message()});
}

}  // namespace dtensor
