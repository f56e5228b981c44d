// What a recorded Recompute() keeps. For recompute.cc and tape.cc only.
#ifndef DTENSOR_TENSOR_REPLAY_H_
#define DTENSOR_TENSOR_REPLAY_H_

#include <memory>
#include <utility>
#include <vector>

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
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_REPLAY_H_
