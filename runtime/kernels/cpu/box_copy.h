// Copies of boxes between strided memories, for boxes that an exchange receives from one peer.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_BOX_COPY_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_BOX_COPY_H_

#include <cstddef>
#include <cstdint>

#include "dtensor/runtime/kernels/arguments/box_loop.h"

namespace dtensor {

// Shorter runs are not worth the head and tail around whole cache lines.
inline constexpr int64_t kStreamRunBytes = 256;

// How far ahead memory is prefetched if a source has gaps. The hardware does this too, and better,
// but starts anew with each run.
inline constexpr int64_t kFetchAhead = 1024;

// dst[0, n) = src[0, n), by streaming stores. Call FinishStores() (streaming.h) before another
// thread may read dst. `next`: where the run that is read after this one begins, which is
// prefetched while this one ends (any address is allowed); null if src continues without a gap.
void StreamCopy(std::byte* dst, const std::byte* src, int64_t n, const std::byte* next = nullptr);

// Copies n elements of `element_bytes` (1, 2, 4 or 8) between strides in bytes.
void CopyStrided(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride,
                 int64_t n, int64_t element_bytes);

// Copies a box from its one source. `stream`: with streaming stores where runs are long.
// Requires: operands() == 2. Source and destination do not overlap, unless the box is in place.
void CopyBox(const BoxLoop& box, bool stream);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_BOX_COPY_H_
