#include "dtensor/layout/chunks.h"

namespace dtensor {

bool DealsWholeGroups(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group) {
  return std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
    const int64_t chunk = CeilDiv(size, zigzag ? 2 * parts : parts);
    return chunk % group == 0 || chunk >= size;  // if the first chunk holds all, nothing is cut
  });
}

ShareSizes SharesOf(const ShareSizes& sizes, int64_t parts, bool zigzag, int64_t group) {
  ShareSizes result;
  for (int64_t size : sizes) {
    const int64_t groups = CeilDiv(size, group);
    for (int64_t i = 0; i < parts; ++i) {
      const Share share = ShareAt(groups, parts, zigzag, i);
      // The last group may be short. It belongs to the chunk that ends with it.
      const bool last = share.low.size() > 0 && share.low.end == groups;
      const bool high_last = share.high.size() > 0 && share.high.end == groups;
      const int64_t missing = last || high_last ? groups * group - size : 0;
      const int64_t held = share.size() * group - missing;
      if (std::find(result.begin(), result.end(), held) == result.end()) result.push_back(held);
    }
  }
  return result;
}

}  // namespace dtensor
