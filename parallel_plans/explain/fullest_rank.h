// Finds the ranks that may hold the most, without running them. For explain.cc.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_

#include <vector>

#include "absl/types/span.h"
#include "dtensor/tensor/context.h"

namespace dtensor {
namespace internal {

// Returns ranks, ascending, one of which holds the most. `specs` are the Specs of all tensors in
// the step of a rank of the mesh. Ranks with the same sizes everywhere are alike: the first and the
// last of them stand for all. A rank is left out if some other rank's shards are nowhere smaller,
// and larger somewhere. If there are `ring_axes`, ranks at different places in the ring
// (coordinates on `ring_axes`) have different work and memory: then this is done for each place,
// and the first rank alone stands for those that are alike. Of more than 16 places, 16 that are
// evenly spread are taken. Coordinates on `stage_axis` (-1: none) are places, too, and none of
// these is left out. Requires: a mesh on ranks 0 to size() - 1, in any order.
std::vector<int> FullestCandidates(absl::Span<const SpecPtr> specs, const DeviceMesh& mesh,
                                   absl::Span<const int> ring_axes, int stage_axis = -1);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
