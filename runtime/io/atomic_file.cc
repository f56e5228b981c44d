#include "dtensor/runtime/io/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/descriptor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/mount_root.h"

namespace dtensor {
namespace {

namespace fs = std::filesystem;

absl::Status CannotWrite(absl::string_view path, absl::string_view reason) {
  return absl::UnavailableError(absl::StrCat("cannot write '", path, "': ", reason));
}

// Where a name leads, and what is there.
struct Place {
  fs::path path;  // without symbolic links at its end
  bool exists = false, in_place = false;
  bool mounted = false;  // an ordinary file that no other can be renamed to
  struct stat status = {};
};

// /dev/stdout is a link to /proc/self/fd/1, which looks like a link to what is open.
bool IsOpenFile(const fs::path& path) {
  return absl::StartsWith(path.native(), "/proc/") || absl::StartsWith(path.native(), "/dev/fd/");
}

absl::Status FollowLinks(Place& place) {
  constexpr int kMaxLinks = 40;  // the kernel's own limit
  for (int i = 0; i < kMaxLinks; ++i) {
    place.in_place |= IsOpenFile(place.path);
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(place.path, error))) return absl::OkStatus();
    const fs::path target = fs::read_symlink(place.path, error);
    if (error) return absl::UnavailableError(error.message());
    place.path = place.path.parent_path() / target;  // `target` alone if that is absolute
  }
  return absl::UnavailableError(std::strerror(ELOOP));
}

absl::StatusOr<Place> Find(const std::string& path) {
  Place place;
  place.path = path;
  const absl::Status followed = FollowLinks(place);
  if (!followed.ok()) return CannotWrite(path, followed.message());
  place.exists = stat(path.c_str(), &place.status) == 0;
  if (!place.exists && errno != ENOENT) return CannotWrite(path, std::strerror(errno));
  if (place.exists && S_ISDIR(place.status.st_mode)) return CannotWrite(path, "it is a folder");
  if (place.path.filename().empty()) return CannotWrite(path, "it names no file");
  if (!place.exists) return place;
  if (access(path.c_str(), W_OK) != 0) return CannotWrite(path, std::strerror(errno));
  place.in_place |= !S_ISREG(place.status.st_mode);
  place.mounted = !place.in_place && IsMountRoot(path);
  place.in_place |= place.mounted;
  return place;
}

fs::path FolderOf(const fs::path& place) {
  return place.has_parent_path() ? place.parent_path() : fs::path(".");
}

// A name in the same folder that nobody else uses, shortened if it would be too long.
fs::path TemporaryName(const fs::path& place) {
  static std::atomic<int> count = 0;
  const std::string name = place.filename().native().substr(0, NAME_MAX - 40);
  return FolderOf(place) / absl::StrCat(".", name, ".", getpid(), ".", ++count, ".tmp");
}

// Creates the temporary file and sets `name`. Returns less than 0 on error, with errno.
int OpenTemporary(const fs::path& place, std::string& name) {
  constexpr int kTries = 100;  // a killed process of the same number may have left some
  int file = -1;
  for (int i = 0; i < kTries && file < 0; ++i) {
    name = TemporaryName(place).native();
    file = OffStandardStreams(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file < 0 && errno != EEXIST) break;
  }
  return file;
}

// The owner first: changing it may clear bits of the mode.
bool CopyPermissions(int file, const struct stat& from) {
  if (fchown(file, from.st_uid, from.st_gid) != 0) {
    (void)!fchown(file, -1, from.st_gid);  // as far as it is allowed
  }
  return fchmod(file, from.st_mode & 07777) == 0;
}

// Makes the new name survive a crash, if the file system can promise that.
void SyncFolder(const fs::path& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  SyncAll(file);
  close(file);
}

}  // namespace

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      place_(std::move(other.place_)),
      temporary_(std::exchange(other.temporary_, "")),
      file_(std::exchange(other.file_, -1)) {}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  AtomicFile file(path);
  if (place.in_place) {
    const int begin = place.mounted ? O_TRUNC : O_APPEND;
    // Opening a pipe waits for its reader; a signal may interrupt that.
    file.file_ =
        OffStandardStreams(TEMP_FAILURE_RETRY(open(path.c_str(), O_WRONLY | O_CLOEXEC | begin)));
    if (file.file_ < 0) return CannotWrite(path, std::strerror(errno));
    return file;
  }
  file.place_ = place.path.native();
  file.file_ = OpenTemporary(place.path, file.temporary_);
  if (file.file_ < 0) {
    file.temporary_.clear();
    return CannotWrite(path, absl::StrCat("no file can be made in '", FolderOf(place.path).native(),
                                          "': ", std::strerror(errno)));
  }
  if (place.exists && !CopyPermissions(file.file_, place.status)) {
    return CannotWrite(path, std::strerror(errno));
  }
  return file;
}

absl::Status AtomicFile::Write(const void* bytes, size_t size) {
  if (WriteAll(file_, bytes, size)) return absl::OkStatus();
  return CannotWrite(path_, std::strerror(errno));
}

absl::Status AtomicFile::Commit() {
  const int file = std::exchange(file_, -1);
  // A pipe has nothing to sync; an ordinary file that is written in place has.
  struct stat about;
  const bool is_file = fstat(file, &about) == 0 && S_ISREG(about.st_mode);
  const bool synced = !is_file || SyncAll(file);
  const int reason = errno;
  const bool closed = close(file) == 0 || errno == EINTR;  // after EINTR it is closed, too
  if (!synced) return CannotWrite(path_, std::strerror(reason));
  if (!closed) return CannotWrite(path_, std::strerror(errno));
  if (temporary_.empty()) return absl::OkStatus();
  if (std::rename(temporary_.c_str(), place_.c_str()) != 0) {
    return CannotWrite(path_, std::strerror(errno));
  }
  temporary_.clear();
  SyncFolder(FolderOf(place_));
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view text) {
  DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  DT_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  return file.Commit();
}

bool IsStream(const std::string& path) {
  const absl::StatusOr<Place> place = Find(path);
  return place.ok() && place->exists && place->in_place && !place->mounted;
}

absl::Status CheckWritable(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const Place place, Find(path));
  // Opening a pipe waits for its reader.
  return place.in_place ? absl::OkStatus() : AtomicFile::Create(path).status();
}

}  // namespace dtensor
