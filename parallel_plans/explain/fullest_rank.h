// Which ranks may hold the most, found out without running them. For explain.cc.
#ifndef DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
#define DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_

#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {
namespace internal {

// Ranks among which is one that holds the most, ascending. `specs` are all that a rank of
// `world_size` had to do with. Ranks whose shards have the same sizes in each of them are alike,
// but for what a schedule gives them to do, as a causal ring: of these the first and the last
// stand for all. A rank whose shards are nowhere larger than another's is left out.
std::vector<int> FullestCandidates(absl::Span<const SpecPtr> specs, int world_size);

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_EXPLAIN_FULLEST_RANK_H_
