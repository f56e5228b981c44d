#include "dtensor/runtime/core/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace dtensor {

int OffStandardStreams(int made) {
  if (made < 0 || made > STDERR_FILENO) return made;
  const int moved = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(made);
  errno = error;
  return moved;
}

}  // namespace dtensor
