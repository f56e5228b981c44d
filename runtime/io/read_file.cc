#include "dtensor/runtime/io/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

absl::Status CannotRead(const std::string& path) {
  return absl::NotFoundError(absl::StrCat("cannot read '", path, "': ", std::strerror(errno)));
}

absl::Status TooLarge(const std::string& path, int64_t most) {
  return InvalidArgument(
      {"'", path, "' has more than ", absl::StrCat(most), " bytes; give a smaller file"});
}

absl::Status CheckKind(const std::string& path, const struct stat& status, int64_t most) {
  if (S_ISDIR(status.st_mode)) return InvalidArgument({"'", path, "' is a folder, not a file"});
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
    return InvalidArgument({"'", path, "' is a device, not a file"});
  }
  return status.st_size > most ? TooLarge(path, most) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t most) {
  struct stat status = {};
  // Checked before the file is opened, since opening a device may block.
  if (stat(path.c_str(), &status) != 0) return CannotRead(path);
  DT_RETURN_IF_ERROR(CheckKind(path, status, most));
  // Opening and reading a pipe wait for its writer; a signal may interrupt that.
  const int file = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file < 0) return CannotRead(path);
  const absl::Cleanup closer = [file] { close(file); };
  constexpr int64_t kPiece = 1 << 20;
  std::string text;
  while (static_cast<int64_t>(text.size()) <= most) {
    const size_t before = text.size();
    text.resize(before + std::min<int64_t>(kPiece, most + 1 - static_cast<int64_t>(before)));
    const ssize_t got = TEMP_FAILURE_RETRY(read(file, &text[before], text.size() - before));
    if (got < 0) return CannotRead(path);
    text.resize(before + got);
    if (got == 0) return text;
  }
  return TooLarge(path, most);
}

}  // namespace dtensor
