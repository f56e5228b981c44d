// How much memory this machine has left.
#ifndef DTENSOR_TOOLS_PROGRAM_MEMORY_H_
#define DTENSOR_TOOLS_PROGRAM_MEMORY_H_

#include <cstdint>

namespace dtensor {

// Bytes of memory that are free here.
int64_t MemoryAvailable();

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_MEMORY_H_
