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
// had to do with. A rank whose shards are nowhere larger than another's is left out; those with the
// same sizes in each of them are alike: the first stands for all, and the last. A ring gives each
// place in it something else to do, and to hold: of each place, that is of coordinates on
// `ring_axes`, there is one rank; of more than 16 places, of 16 that are evenly spread. Requires: a
// mesh on ranks 0 to size() - 1, in any order.
std::vector<int> FullestCandidates(absl::Span<const SpecPtr> specs, const DeviceMesh& mesh,
                                   absl::Span<const int> ring_axes);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
