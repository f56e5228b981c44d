// What a recorded Recompute() keeps. For recompute.cc and tape.cc only.
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
  std::vector<DistributedTensor> operands;     // their values: aliases without edges
  RandomState random;                          // when fn ran
  std::unique_ptr<CollectiveResults> results;  // null: not kept

  // fn on aliases of the operands, to which gradients flow by `edges`, recorded. `again`: not for
  // the first time.
  TensorsOr Run(Context& context, absl::Span<const Edge> edges, bool again) const;
  // That the results of another run, of operators younger than `since`, are led to by the leaves
  // that the first one led to, whose call is `node`. Errors: kInvalidArgument, naming a leaf.
  absl::Status CheckLeaves(const Node& node, absl::Span<const DistributedTensor> results,
                           uint64_t since) const;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REPLAY_H_
