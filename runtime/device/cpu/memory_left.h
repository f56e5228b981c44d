// How much memory the control groups of this process, such as its container's, leave it. A process
// that takes more is killed without warning.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace dtensor {

// In bytes, at this moment: other processes of the group take from it too. Memory that caches files
// counts as left. None if no limit is known. Thread-safe. The file `groups` has a line for each
// hierarchy; each group is a folder under `root`. Reads groups of version 2, and of version 1 for
// memory.
std::optional<int64_t> MemoryLeft(const std::string& groups = "/proc/self/cgroup",
                                  const std::string& root = "/sys/fs/cgroup");

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_
