// Boxes of a redistribution, put together dimension by dimension. For its sources alone.
#ifndef DTENSOR_REDISTRIBUTION_BOX_PARTS_H_
#define DTENSOR_REDISTRIBUTION_BOX_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor {

// Positions in `src` and `dst` of the indices in `common`, which both of them have. A run for each
// run of `common`, or more where it goes on over runs of the others.
std::vector<MatchedRun> Locate(const IndexSet& src, const IndexSet& dst, const IndexSet& common);

// As MatchIndexSets, of the indices that `part`, a subset of `dst`, has too.
std::vector<MatchedRun> MatchPart(const IndexSet& src, const IndexSet& dst, const IndexSet& part);

// A piece of one dimension, from a peer whose position in the mesh is a common one plus `delta` as
// far as this dimension decides.
struct BoxPart {
  MatchedRun piece;
  int delta = 0;
};

void AddParts(const std::vector<MatchedRun>& pieces, int delta, std::vector<BoxPart>& parts);
// Ascending by place in the result.
std::vector<BoxPart> SortedParts(std::vector<BoxPart> parts);

// Appends the product over dimensions: each box from the peers at `base` + the deltas + each of
// `terms`. Scalars have parts of one dimension, and boxes of none.
void AppendBoxes(absl::Span<const std::vector<BoxPart>> dims, int base, absl::Span<const int> terms,
                 bool is_scalar, std::vector<ReceiveBox>& boxes);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_BOX_PARTS_H_
