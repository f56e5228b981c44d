// Where a file or folder is mounted nothing can be renamed to, or over.
#ifndef DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_
#define DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_

#include <string>

namespace dtensor {

// Whether something is mounted at `path`, or where that leads. False where there is nothing, and
// where the system does not say (before Linux 5.8).
bool IsMountRoot(const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_
