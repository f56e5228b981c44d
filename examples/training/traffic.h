// What one rank, or the whole world, communicates and holds in a training step.
#ifndef DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_
#define DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/tensor/context.h"

namespace dtensor::training {

// By axes and kind: collectives that a rank takes part in (the most of any rank), and bytes
// received by all ranks together.
struct StepTraffic {
  TrafficTable table;  // calls: of the busiest rank; messages and bytes: summed over ranks
  // Per rank: the peak of live tensor bytes since the model was made.
  std::vector<int64_t> peak_bytes;
};

struct RankTraffic {
  TrafficTable table;
  int64_t peak_bytes = 0;
};

// The traffic in `now` that is not in `before`.
TrafficTable Since(const TrafficTable& now, const TrafficTable& before);

// Predicts what rank `rank` of config.mesh.size() does in each step but the first, by running the
// program on a meta device. Errors: those of Trainer::Create and Begin.
absl::StatusOr<RankTraffic> PredictRank(const TrainConfig& config, int rank);

// The world's traffic, from each rank's own. Collective. Errors: those of GatherBytes.
absl::StatusOr<StepTraffic> GatherTraffic(Context& context, const RankTraffic& mine);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_TRAFFIC_H_
