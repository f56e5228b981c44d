// Builds the boxes of a redistribution dimension by dimension. Only for this folder's sources.
#ifndef DTENSOR_REDISTRIBUTION_BOX_PARTS_H_
#define DTENSOR_REDISTRIBUTION_BOX_PARTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor {

// The positions in `src` and in `dst` of the indices in `common`, a subset of both. Gives one run
// for each run of `common`, or several if that extends over several runs of `src` or `dst`.
std::vector<MatchedRun> Locate(const IndexSet& src, const IndexSet& dst, const IndexSet& common);

// As MatchIndexSets, but only for the indices in `part`, a subset of `dst`.
std::vector<MatchedRun> MatchPart(const IndexSet& src, const IndexSet& dst, const IndexSet& part);

// A piece of one dimension. `delta` is what this dimension adds to the position of the peer in the
// mesh (AppendBoxes).
struct BoxPart {
  MatchedRun piece;
  int delta = 0;
};

void AddParts(const std::vector<MatchedRun>& pieces, int delta, std::vector<BoxPart>& parts);
// Sorted by position in the result, ascending.
std::vector<BoxPart> SortedParts(std::vector<BoxPart> parts);

// Appends the product over dimensions, one box for each combination of parts. The peers of a box
// are at the positions `base` + the deltas of its parts + each of `terms`. For scalars, `dims` has
// one dimension and boxes have none.
void AppendBoxes(absl::Span<const std::vector<BoxPart>> dims, int base, absl::Span<const int> terms,
                 bool is_scalar, std::vector<ReceiveBox>& boxes);

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_BOX_PARTS_H_
