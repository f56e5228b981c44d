// What a training step communicates and holds, of one rank and of the world.
#ifndef DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_
#define DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/tensor/context.h"

namespace dtensor::training {

// Collectives that a rank takes part in (the most of any rank), bytes received by all ranks
// together, per axes and kind.
struct StepTraffic {
  TrafficTable table;  // calls: of the busiest rank; messages and bytes: summed over ranks
  // Per rank: live tensor bytes at their highest, since the model was made.
  std::vector<int64_t> peak_bytes;
};

struct RankTraffic {
  TrafficTable table;
  int64_t peak_bytes = 0;
};

// What `now` has beyond `before`.
TrafficTable Since(const TrafficTable& now, const TrafficTable& before);

// What rank `rank` of config.mesh.size() will do in each step but the first, from the program
// itself on a meta device. Errors: of Trainer::Create and Begin.
absl::StatusOr<RankTraffic> PredictRank(const TrainConfig& config, int rank);

// The world's, from each rank's own. Collective. Errors: of GatherBytes.
absl::StatusOr<StepTraffic> GatherTraffic(Context& context, const RankTraffic& mine);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_
