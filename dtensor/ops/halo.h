// Halos: what the windows of one shard reach of other shards of their dimension. For the sources of
// this folder.
//
// Each rank's windows are a few runs of neighbours, and a run reaches an interval of the dimension.
// All ranks know all of them, so each knows what every other one needs of it.
#ifndef DTENSOR_OPS_HALO_H_
#define DTENSOR_OPS_HALO_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/ops/dim_runs.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/tensor/op.h"

namespace dtensor::internal {

// Where a window lies: window i has elements of [i * step - before, i * step - before + reach), and
// none if it is number `limit` or a later one.
struct WindowReach {
  int64_t step = 1, before = 0, reach = 1, limit = 0;
};

// Neighbours among a rank's windows, how many of them, the first ones, are below the limit, and
// what these reach of the dimension: [begin, end).
struct WindowRun {
  DimRun windows;
  int64_t live = 0;
  int64_t begin = 0, end = 0;
};

// The ranks among which a dimension is sharded, as seen from one of them. It follows from layouts,
// so it is made once for each dispatch decision.
struct Halo : OpState {
  struct Shard {
    IndexSet held;  // elements of the dimension
    std::vector<WindowRun> runs;
  };
  std::string axes;           // "cp"
  std::vector<int> ranks;     // of the world, ascending
  std::vector<Shard> shards;  // of each of them
  size_t me = 0;              // this rank's place among them
  size_t most_runs = 0;       // of any of them
  bool moves = false;         // whether any of them reaches what it does not hold
  uint64_t digest = 0;        // of all this but `me`
  const Shard& mine() const { return shards[me]; }
  int64_t bytes() const override;
  bool exchanges() const override { return moves; }
};

// For OpDef::prepare, of a rule whose letter `windows` says how the windows of dimension `dim` of
// operand 0 are sharded.
absl::StatusOr<std::shared_ptr<const Halo>> MakeHalo(const OpStateRequest& request, int dim,
                                                     absl::string_view windows,
                                                     const WindowReach& reach);

// The state of a call's decision. Requires: MakeHalo made it. So do the functions below.
const Halo& HaloOf(const RankCall& call);

// What this rank's runs reach of x, its shard [a, held, b], row-major: [a, end - begin, b] each.
// These are views of x if nothing moves. Collective over the ranks, if something does. Errors:
// failures.
absl::StatusOr<std::vector<Tensor>> GatherHalos(const RankCall& call, const Tensor& x);
// The reverse: dx, a shard as x, becomes the sum of what all ranks' runs have for its elements.
// `reached`: as GatherHalos gives it, row-major, of dx's type. This rank's runs are added first,
// then the first run of each other rank, in ascending order, then the second runs; in f32 for
// 16-bit types, rounded once.
absl::Status ScatterHalos(const RankCall& call, absl::Span<const Tensor> reached, const Tensor& dx);

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_HALO_H_
