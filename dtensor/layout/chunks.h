// Ceil chunks: the arithmetic behind every split of a dimension, as torch.chunk.
//
// Splitting [0, n) into `parts` ceil chunks gives chunks of ceil(n / parts) elements; trailing ones
// may be shorter or empty. n = 5 over 4: {0, 1}, {2, 3}, {4}, {}.
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

// What rank `index` of `parts` ranks holds of [0, n): one ceil chunk; or, with zigzag, of 2 * parts
// ceil chunks the chunks `index` (`low`) and 2 * parts - 1 - index (`high`).
struct Share {
  Chunk low, high;
  constexpr int64_t size() const { return low.size() + high.size(); }
};
constexpr Share ShareAt(int64_t n, int64_t parts, bool zigzag, int64_t index) {
  if (!zigzag) return {ChunkAt(n, parts, index), {n, n}};
  return {ChunkAt(n, 2 * parts, index), ChunkAt(n, 2 * parts, 2 * parts - 1 - index)};
}

// The distinct sizes of ranks' shares after some splits.
using ShareSizes = absl::InlinedVector<int64_t, 4>;

// Whether splitting shares of each size in `sizes` over `parts` ranks leaves groups of `group`
// elements whole.
bool DealsWholeGroups(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group);

// The sizes after splitting such shares over `parts` ranks in groups of `group` elements, the last
// of which may be shorter.
ShareSizes SharesOf(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group = 1);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_CHUNKS_H_
