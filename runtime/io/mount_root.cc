#include "dtensor/runtime/io/mount_root.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace dtensor {

bool IsMountRoot(const std::string& path) {
  struct statx status = {};
  if (statx(AT_FDCWD, path.c_str(), AT_NO_AUTOMOUNT, STATX_TYPE, &status) != 0) return false;
  return (status.stx_attributes & status.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace dtensor
