// When outputs are written past the caches.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_

#include <cstdint>

#include "hwy/cache_control.h"

namespace dtensor::kernels {

// A streaming store saves reading the line that it overwrites, and costs the reader that comes next
// if the output would have stayed in the cache. Measured, a chain of additions gains from 8 MiB on
// (15%, and 27% at 64 MiB; at 4 MiB it loses 10%). So: only outputs too large to stay there, and
// never in place.
inline constexpr int64_t kStreamBytes = 8 << 20;
// What an exchange brings is written by all ranks at once, and read by none of them at once: there
// streaming gains from 4 MiB on (measured: all-gathers of 4 MiB take 1.3 to 2.5 times as long
// without).
inline constexpr int64_t kStreamExchangeBytes = 4 << 20;

// `in_place`: an output's memory is also an input's.
inline bool StreamStores(int64_t out_bytes, bool in_place) {
  return out_bytes >= kStreamBytes && !in_place;
}

// At the end of a kernel that streamed: other threads may read what it wrote from here on.
// (Streaming stores are not ordered by what releases a lock or publishes an event.)
inline void FinishStores(bool stream) {
  if (stream) hwy::FlushStream();
}

// Whether elements of equal index lie at equal places in their cache lines.
inline bool LieAlike(const void* a, const void* b) {
  return reinterpret_cast<uintptr_t>(a) % 64 == reinterpret_cast<uintptr_t>(b) % 64;
}

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_STREAMING_H_
