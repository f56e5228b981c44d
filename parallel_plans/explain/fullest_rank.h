// Which ranks may hold the most, found out without running them. For explain.cc.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_

#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// Ranks among which is one that holds the most, ascending. `specs` are all that a rank of the mesh
// had to do with. Ranks whose shards have the same sizes in each of them are alike, and so are
// those whose shards are nowhere larger than another's; the first stands for all, and where nothing
// goes round in rings, the last. A ring gives each place in it something else to do, and to hold:
// ranks are alike only where their coordinates on `ring_axes` are the same.
std::vector<int> FullestCandidates(absl::Span<const SpecPtr> specs, const DeviceMesh& mesh,
                                   absl::Span<const int> ring_axes);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
