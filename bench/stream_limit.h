// The fastest copy that this machine can do, to measure others by.
#ifndef DTENSOR_BENCH_STREAM_LIMIT_H_
#define DTENSOR_BENCH_STREAM_LIMIT_H_

#include <cstddef>
#include <cstdint>

namespace dtensor::bench {

// dst = src by the widest streaming stores there are. Requires: both aligned to 64 bytes, `bytes` a
// multiple of 256; no overlap. Independent of the library's own copies on purpose.
void BestCopy(std::byte* dst, const std::byte* src, int64_t bytes);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_STREAM_LIMIT_H_
