#include "dtensor/runtime/core/descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dtensor {
namespace {

// How many of `size` bytes may be written at the file's position within the limit of file sizes.
size_t RoomFor(size_t size, int file) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return size;
  struct stat about;
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) return size;  // only files are limited
  const bool appends = (fcntl(file, F_GETFL) & O_APPEND) != 0;
  const auto at = static_cast<rlim_t>(appends ? about.st_size : lseek(file, 0, SEEK_CUR));
  return at < limit.rlim_cur ? std::min<rlim_t>(size, limit.rlim_cur - at) : 0;
}

}  // namespace

int OffStandardStreams(int made) {
  if (made < 0 || made > STDERR_FILENO) return made;
  const int moved = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(made);
  errno = error;
  return moved;
}

bool WriteAll(int file, const void* bytes, size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const size_t room = RoomFor(size, file);
    if (room == 0) {
      errno = EFBIG;
      return false;
    }
    const ssize_t written = write(file, at, room);
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    at += written;
    size -= written;
  }
  return true;
}

bool SyncAll(int file) {
  int status = 0;
  do status = fsync(file);
  while (status != 0 && errno == EINTR);
  return status == 0;
}

}  // namespace dtensor
