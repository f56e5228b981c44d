// Which rank writes what of a checkpoint: each element once, by a rank that holds it.
//
// Ranks that hold the same part of a tensor share it, so that none writes much more than another:
// who has less to write takes more. A part is cut along its rows where they are short enough, else
// anywhere (even_share.h). Pure: every rank finds the same plan from what it knows of the tensors,
// and nobody tells anybody.
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

// One tensor, on a mesh of ranks of the world. Not Partial.
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

// The slices of all tensors, by tensor, then by rank. Of `ranks` ranks, those of the world. A rank
// has more than one slice of a tensor only where rows are so long that they are cut.
std::vector<PlannedSlice> PlanSlices(absl::Span<const PlannedTensor> tensors, int ranks);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SLICE_PLAN_H_
