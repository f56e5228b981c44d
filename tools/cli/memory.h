// How much memory this machine has left.
#ifndef DTENSOR_TOOLS_CLI_MEMORY_H_
#define DTENSOR_TOOLS_CLI_MEMORY_H_

#include <cstdint>

namespace dtensor::cli {

// Bytes of memory that are free here.
int64_t MemoryAvailable();

}  // namespace dtensor::cli

#endif  // DTENSOR_TOOLS_CLI_MEMORY_H_
