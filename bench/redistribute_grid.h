// The rows of //bench:redistribute: which tensor goes from which placements to which.
#ifndef DTENSOR_BENCH_REDISTRIBUTE_GRID_H_
#define DTENSOR_BENCH_REDISTRIBUTE_GRID_H_

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"

namespace dtensor::bench {

using Placements = absl::InlinedVector<Placement, 4>;

struct Row {
  std::vector<int> mesh;  // axis sizes
  Placements from, to;
  Dims shape;
  DType dtype = DType::kF32;

  int ranks() const;
  int64_t bytes() const;  // of the global tensor
  // "2x2/S0,S1->S1,S0/f32/64MiB"; the last part is the shape where sizes are uneven.
  std::string Name() const;
};

// `wide`: with the meshes of 8 ranks too.
std::vector<Row> Grid(bool wide);

// The placements that PyTorch's greedy planner passes through, one axis at a time, the last being
// `to`. First from the innermost axis outwards: an axis that must shard a dimension goes there
// directly if the axes before it already shard that dimension as they finally will, and is gathered
// otherwise. Then from the outermost axis inwards: what is still missing.
std::vector<Placements> GreedySteps(const Placements& from, const Placements& to);

}  // namespace dtensor::bench

#endif  // DTENSOR_BENCH_REDISTRIBUTE_GRID_H_
