// Replay: what a recorded Recompute() keeps to run again.
#ifndef DTENSOR_TENSOR_REPLAY_H_
#define DTENSOR_TENSOR_REPLAY_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/tensor/collective_results.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/recompute.h"
#include "dtensor/tensor/tensor_impl.h"

namespace dtensor {

struct Replay {
  RecomputedFunction fn;
  std::vector<DistributedTensor> operands;               // aliases without edges
  RandomState random;                                    // before fn ran first
  std::shared_ptr<const DistributedTensor> key_lengths;  // when fn ran first
  std::unique_ptr<CollectiveResults> results;            // null: not kept
  bool changes_mesh = false;  // whether a tensor went to another mesh when fn ran first

  // Runs fn, recorded, on aliases of the operands; their gradients flow along `edges`. `again`: if
  // this is not the first run, the lineage of the recorded call; else null.
  TensorsOr Run(Context& context, absl::Span<const Edge> edges, const uint64_t* again) const;
  // Checks that another run depends on the same leaves as the first, which `node` recorded.
  // `results` are those of the other run; its operators have sequence numbers above `since`.
  // Errors: kInvalidArgument, naming a leaf.
  absl::Status CheckLeaves(const Node& node, absl::Span<const DistributedTensor> results,
                           uint64_t since) const;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REPLAY_H_
