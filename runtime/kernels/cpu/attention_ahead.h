// Prefetches memory that attention needs soon, while it computes with other memory.
//
// The rows of a head are not adjacent, so hardware does not prefetch them. A core waits for about
// two dozen cache lines at once. If all rows of a block are requested only when they are copied,
// each pays the full memory latency; a few at a time, between products, cost next to nothing.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_AHEAD_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_AHEAD_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "hwy/cache_control.h"

namespace dtensor::kernels {

// Rows of `bytes` bytes, `stride` bytes apart.
struct MemoryRows {
  const char* data = nullptr;
  int64_t stride = 0, rows = 0, bytes = 0;

  // Removes up to n of them from these rows, and returns them.
  MemoryRows Take(int64_t n) {
    MemoryRows front = *this;
    front.rows = std::min(n, rows);
    data += front.rows * stride;
    rows -= front.rows;
    return front;
  }
};

// For each strip: call Clear, Add..., Start; then FetchSome with each of its tiles.
class RowsAhead {
 public:
  // Forgets what was not fetched.
  void Clear() { next_ = end_ = 0; }

  // At most five since Clear(), fetched in this order.
  void Add(const MemoryRows& rows) {
    if (rows.rows > 0 && rows.bytes > 0) parts_[end_++] = rows;
  }

  // Everything that was added is fetched by the next `calls` calls of FetchSome().
  void Start(int64_t calls) {
    int64_t bytes = 0;
    for (int i = 0; i < end_; ++i) bytes += parts_[i].rows * parts_[i].bytes;
    bytes_at_once_ = std::max(kBytesAtOnce, bytes / std::max<int64_t>(1, calls) + 1);
  }

  void FetchSome() {
    for (int64_t left = bytes_at_once_; left > 0 && next_ < end_;) {
      MemoryRows& part = parts_[next_];
      left -= part.rows * part.bytes;
      const int64_t not_yet = left < 0 ? -left / part.bytes : 0;
      for (; part.rows > not_yet; --part.rows, part.data += part.stride) {
        for (int64_t i = 0; i < part.bytes; i += kLine) hwy::Prefetch(part.data + i);
      }
      if (part.rows == 0) ++next_;
    }
  }

 private:
  static constexpr int64_t kLine = 64, kBytesAtOnce = 24 * kLine;

  std::array<MemoryRows, 5> parts_;
  int next_ = 0, end_ = 0;
  int64_t bytes_at_once_ = 0;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ATTENTION_AHEAD_H_
