// What the control groups of this process, a container's among them, leave it of memory. A process
// that takes more is killed, and not told.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace dtensor {

// In bytes, now: other processes of the group take from it too. What files are cached counts as
// left. None where no limit is known. Thread-safe. `groups` has a line for each hierarchy, under
// `root` is a folder for each group: version 2's, or version 1's for memory.
std::optional<int64_t> MemoryLeft(const std::string& groups = "/proc/self/cgroup",
                                  const std::string& root = "/sys/fs/cgroup");

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_MEMORY_LEFT_H_
