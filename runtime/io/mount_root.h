// Detects mount points: nothing can be renamed to, or over, a file or folder that is mounted.
#ifndef DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_
#define DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_

#include <string>

namespace dtensor {

// Whether something is mounted at `path`, or at what it resolves to. False if nothing exists there,
// and if the system does not say (before Linux 5.8).
bool IsMountRoot(const std::string& path);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_IO_MOUNT_ROOT_H_
