// For who opens what is written to: files, sockets, shared memory.
#ifndef DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_
#define DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_

#include <cstddef>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// What open() or a call like it has returned, as a descriptor above 2. Where a process begins with
// its standard streams closed, what is opened first is taken for one of them, and whatever the
// process prints goes there. Less than 0, with errno, where `made` is, or where the process has no
// descriptor left: then `made` is closed.
// Requires: opened so that programs that are started do not inherit it (O_CLOEXEC); nor do they
// what is returned.
int OffStandardStreams(int made);

// write() until all is written, also where signals come meanwhile. False, with errno, where it is
// not; EFBIG behind the size that files may have (ulimit -f), where write() alone sends a signal
// that ends the process.
bool WriteAll(int file, const void* bytes, size_t size);

// fsync(), repeated if a signal interrupts it (as on NFS). False, with errno, on failure.
bool SyncAll(int file);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_DESCRIPTOR_H_
