// Ceil chunks: the arithmetic under every split of a dimension.
//
// [0, n) in `parts` ceil chunks has chunks of ceil(n / parts); trailing ones may be short or empty.
// n = 5 over 4: {0, 1}, {2, 3}, {4}, {}.
#ifndef DTENSOR_LAYOUT_CHUNKS_H_
#define DTENSOR_LAYOUT_CHUNKS_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

constexpr int64_t CeilDiv(int64_t n, int64_t d) { return n / d + (n % d != 0); }

struct Chunk {
  int64_t begin = 0, end = 0;
  constexpr int64_t size() const { return end - begin; }
};

// The index-th of `parts` ceil chunks of [0, n).
constexpr Chunk ChunkAt(int64_t n, int64_t parts, int64_t index) {
  const int64_t size = CeilDiv(n, parts);
  return {std::min(n, index * size), std::min(n, (index + 1) * size)};
}

// What one rank of `parts` holds of [0, n): one ceil chunk, or (zigzag) the chunks `index` and
// 2 * parts - 1 - index of twice as many; then `low` precedes `high`.
struct Share {
  Chunk low, high;
  constexpr int64_t size() const { return low.size() + high.size(); }
};
constexpr Share ShareAt(int64_t n, int64_t parts, bool zigzag, int64_t index) {
  if (!zigzag) return {ChunkAt(n, parts, index), {n, n}};
  return {ChunkAt(n, 2 * parts, index), ChunkAt(n, 2 * parts, 2 * parts - 1 - index)};
}

// The distinct numbers of elements that ranks hold after some splits.
using ShareSizes = absl::InlinedVector<int64_t, 4>;

// Whether a further split over `parts`, of every size in `sizes`, cuts between groups of `group`
// only.
bool DealsWholeGroups(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group);

// The sizes after a split that deals groups of `group` elements, the last of them perhaps short.
ShareSizes SharesOf(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group = 1);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_CHUNKS_H_
