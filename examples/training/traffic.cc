#include "dtensor/examples/training/traffic.h"

#include <algorithm>
#include <memory>
#include <string>

#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"
#include "nlohmann/json.hpp"

namespace dtensor::training {
namespace {

std::string Encode(const RankTraffic& traffic) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [key, counted] : traffic.table) {
    rows.push_back(
        {key.first, static_cast<int>(key.second), counted.calls, counted.messages, counted.bytes});
  }
  return nlohmann::json{{"rows", rows}, {"peak", traffic.peak_bytes}}.dump();
}

void Merge(const std::string& of_rank, StepTraffic& world) {
  const nlohmann::json traffic = nlohmann::json::parse(of_rank);
  for (const nlohmann::json& row : traffic["rows"]) {
    CommunicatorTraffic& sum =
        world.table[{row[0].get<std::string>(), static_cast<CollectiveKind>(row[1].get<int>())}];
    sum.calls = std::max(sum.calls, row[2].get<int64_t>());
    sum.messages += row[3].get<int64_t>();
    sum.bytes += row[4].get<int64_t>();
  }
  world.peak_bytes.push_back(traffic["peak"]);
}

}  // namespace

TrafficTable Since(const TrafficTable& now, const TrafficTable& before) {
  TrafficTable out;
  for (const auto& [key, traffic] : now) {
    const auto it = before.find(key);
    const CommunicatorTraffic past = it == before.end() ? CommunicatorTraffic() : it->second;
    if (traffic == past) continue;
    out[key] = {traffic.calls - past.calls, traffic.messages - past.messages,
                traffic.bytes - past.bytes};
  }
  return out;
}

absl::StatusOr<RankTraffic> PredictRank(const TrainConfig& config, int rank) {
  RankTraffic predicted;
  const std::vector<int32_t> tokens(config.batch * (config.sequence + 1), 0);
  DT_RETURN_IF_ERROR(Simulate(rank, config.mesh.size(), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(context, config));
    DT_RETURN_IF_ERROR(trainer->Begin());  // refuses weights that do not fit
    context.device().ResetPeak();
    // The second step is like all later ones.
    DT_RETURN_IF_ERROR(trainer->Step(tokens).status());
    const TrafficTable before = context.communicator().traffic();
    DT_RETURN_IF_ERROR(trainer->Step(tokens).status());
    predicted.table = Since(context.communicator().traffic(), before);
    predicted.peak_bytes = context.device().memory().peak_bytes;
    return absl::OkStatus();
  }));
  return predicted;
}

absl::StatusOr<StepTraffic> GatherTraffic(Context& context, const RankTraffic& mine) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::string> all, GatherBytes(context, Encode(mine)));
  StepTraffic world;
  for (const std::string& of_rank : all) Merge(of_rank, world);
  return world;
}

}  // namespace dtensor::training
