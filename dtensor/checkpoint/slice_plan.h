// Decides which rank writes what of a checkpoint: each element once, by a rank that holds it.
//
// Ranks that hold the same part of a tensor share the work so that no rank writes much more than
// another: ranks that have less to write take more. A part is cut between its rows if these are
// short enough, else anywhere (even_share.h). Pure: every rank computes the same plan from what it
// knows of the tensors, without communication.
#ifndef DTENSOR_CHECKPOINT_SLICE_PLAN_H_
#define DTENSOR_CHECKPOINT_SLICE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// A tensor on a mesh of ranks of the world. Not Partial.
struct PlannedTensor {
  Layout layout;
  Dims shape;
  DType dtype = DType::kF32;
};

// What one rank writes of one tensor: a part of what it holds. Never empty.
struct PlannedSlice {
  int rank = 0;       // of the world
  size_t tensor = 0;  // its index
  Region region;      // global indices
};

// The slices of all tensors, ordered by tensor, then by rank. `ranks` is the number of ranks of the
// world. A rank has more than one slice of a tensor only if rows are so long that they are cut.
std::vector<PlannedSlice> PlanSlices(absl::Span<const PlannedTensor> tensors, int ranks);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SLICE_PLAN_H_
