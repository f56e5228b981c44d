// Helpers for code that opens files, sockets or shared memory for writing.
#ifndef DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_
#define DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_

#include <cstddef>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Returns `made`, the result of open() or a similar call, as a descriptor above 2. If a process was
// started with its standard streams closed, the first files that it opens would take their place,
// and whatever the process prints would go there. Returns less than 0, with errno, if `made` is
// less than 0, or if the process has no descriptor left; `made` is then closed. Requires: opened so
// that child programs do not inherit it (O_CLOEXEC); they do not inherit the result either.
int OffStandardStreams(int made);

// Calls write() until everything is written, also if signals interrupt it. Returns false, with
// errno, if that fails; EFBIG beyond the allowed size of files (ulimit -f), where write() alone
// sends a signal that ends the process.
bool WriteAll(int file, const void* bytes, size_t size);

// fsync(), repeated if a signal interrupts it (as on NFS). False, with errno, on failure.
bool SyncAll(int file);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_
