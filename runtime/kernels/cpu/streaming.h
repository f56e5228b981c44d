// When outputs are written past the caches.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_

#include <cstdint>

#include "hwy/cache_control.h"

namespace dtensor::kernels {

// A streaming store saves reading the line that it overwrites, but costs the next reader if the
// output would have stayed in the cache. Measured: a chain of additions gains from 8 MiB on (15%,
// and 27% at 64 MiB; at 4 MiB it loses 10%). So only outputs that are too large for the cache are
// streamed, and never in place.
inline constexpr int64_t kStreamBytes = 8 << 20;
// The results of an exchange are written by all ranks at once, and not read immediately by any:
// there streaming gains from 4 MiB on (measured: all-gathers of 4 MiB take 1.3 to 2.5 times as long
// without).
inline constexpr int64_t kStreamExchangeBytes = 4 << 20;

// `in_place`: an output's memory is also an input's.
inline bool StreamStores(int64_t out_bytes, bool in_place) {
  return out_bytes >= kStreamBytes && !in_place;
}

// Call it at the end of a kernel that streamed: after this, other threads may read what it wrote.
// (Releasing a lock or publishing an event does not order streaming stores.)
inline void FinishStores(bool stream) {
  if (stream) hwy::FlushStream();
}

// Whether elements of equal index have the same position in their cache lines.
inline bool LieAlike(const void* a, const void* b) {
  return reinterpret_cast<uintptr_t>(a) % 64 == reinterpret_cast<uintptr_t>(b) % 64;
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_
