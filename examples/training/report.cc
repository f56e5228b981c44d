#include "dtensor/examples/training/report.h"

#include <algorithm>
#include <deque>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/number_text.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "nlohmann/json.hpp"

namespace dtensor::training {
namespace {

// Every (axes, kind) that was predicted or counted.
std::set<TrafficKey> Keys(const RunResult& result) {
  std::set<TrafficKey> keys;
  for (const auto* table : {&result.predicted.table, &result.counted.table}) {
    for (const auto& [key, traffic] : *table) keys.insert(key);
  }
  return keys;
}

CommunicatorTraffic Find(const TrafficTable& table, const TrafficKey& key) {
  const auto it = table.find(key);
  return it == table.end() ? CommunicatorTraffic() : it->second;
}

nlohmann::json TrafficJson(const RunResult& result, int64_t CommunicatorTraffic::*field) {
  nlohmann::json rows = nlohmann::json::array();
  for (const TrafficKey& key : Keys(result)) {
    rows.push_back({{"axes", key.first},
                    {"kind", std::string(ToString(key.second))},
                    {"predicted", Find(result.predicted.table, key).*field},
                    {"counted", Find(result.counted.table, key).*field}});
  }
  return rows;
}

std::string Bytes(int64_t bytes) {
  if (bytes < 10 * 1024) return absl::StrCat(bytes, " B");
  if (bytes < 10 * 1024 * 1024) return absl::StrFormat("%.1f KiB", bytes / 1024.0);
  return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
}

absl::Status OfFlag(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

int64_t Largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

std::string Table(const TrainConfig& config, const RunResult& result,
                  const std::optional<Difference>& difference) {
  std::string out;
  absl::StrAppendFormat(&out, "mesh %s, plan %s, %d steps\n", config.mesh.ToString(), config.plan,
                        result.losses.size());
  if (!result.losses.empty()) {
    absl::StrAppendFormat(&out, "loss                 %.4f -> %.4f nats per %s, held-out %.4f\n",
                          result.losses.front(), result.losses.back(),
                          config.pretrained ? "token" : "byte", result.heldout_loss);
  }
  absl::StrAppendFormat(&out, "speed                %.0f tokens per second\n",
                        result.tokens_per_second);
  absl::StrAppendFormat(&out, "peak memory per rank %s predicted, %s counted\n",
                        Bytes(Largest(result.predicted.peak_bytes)),
                        Bytes(Largest(result.counted.peak_bytes)));
  absl::StrAppend(&out,
                  "communication of one step (calls per rank; bytes received by all ranks)\n");
  absl::StrAppendFormat(&out, "  %-8s %-15s %10s %10s %14s %14s\n", "axes", "kind", "calls:pred",
                        "counted", "bytes:pred", "counted");
  for (const TrafficKey& key : Keys(result)) {
    const CommunicatorTraffic predicted = Find(result.predicted.table, key),
                              counted = Find(result.counted.table, key);
    absl::StrAppendFormat(&out, "  %-8s %-15s %10d %10d %14s %14s\n", key.first,
                          std::string(ToString(key.second)), predicted.calls, counted.calls,
                          Bytes(predicted.bytes), Bytes(counted.bytes));
  }
  if (Keys(result).empty()) absl::StrAppend(&out, "  none\n");
  if (difference) {
    absl::StrAppendFormat(
        &out,
        "against one rank: losses differ by at most %.2e, gradient norms by %.2e (relative),\n"
        "  gradients at step 0 by %.2e (relative RMS, the worst: %s)\n",
        difference->loss, difference->grad_norm, difference->gradient, difference->worst_gradient);
  }
  return out;
}

absl::Status WriteReport(const std::string& path, const TrainConfig& config,
                         const RunResult& result, const std::optional<Difference>& difference) {
  nlohmann::json report = {
      {"mesh", config.mesh.ToString()},
      {"plan", config.plan},
      {"dtype", std::string(ToString(config.dtype))},
      {"first_step", result.first_step},
      {"steps", result.losses.size()},
      {"losses", result.losses},
      {"grad_norms", result.grad_norms},
      {"heldout_loss", result.heldout_loss},
      {"tokens_per_second", result.tokens_per_second},
      {"collectives", TrafficJson(result, &CommunicatorTraffic::calls)},
      {"bytes", TrafficJson(result, &CommunicatorTraffic::bytes)},
      {"peak_bytes_per_rank",
       {{"predicted", result.predicted.peak_bytes}, {"counted", result.counted.peak_bytes}}},
  };
  if (config.mesh.Find("cp").ok() && !config.cp_pattern.empty())
    report["cp_pattern"] = config.cp_pattern;
  if (difference) {
    report["max_relative_loss_difference"] = difference->loss;
    report["max_relative_grad_norm_difference"] = difference->grad_norm;
    report["max_relative_gradient_difference"] = difference->gradient;
  }
  return OfFlag("--report", WriteFileAtomically(path, absl::StrCat(report.dump(2), "\n")));
}

absl::Status WriteDump(const std::string& path, const TrainConfig& config, const Corpus& corpus,
                       const RunResult& result) {
  std::vector<SafetensorsEntry> entries;
  std::vector<std::string> decayed;
  for (const NamedTensor& weight : result.initial_weights) {
    entries.push_back({weight.name, DType::kF32, Dims(weight.shape.begin(), weight.shape.end()),
                       weight.values.data()});
    if (weight.shape.size() >= 2) decayed.push_back(weight.name);
  }
  for (const NamedTensor& gradient : result.first_gradients) {
    entries.push_back({absl::StrCat("grad.", gradient.name), DType::kF32,
                       Dims(gradient.shape.begin(), gradient.shape.end()), gradient.values.data()});
  }
  std::deque<std::vector<int32_t>> tokens;  // a deque: entries point into it
  const int64_t steps = static_cast<int64_t>(result.losses.size());
  for (int64_t step = 0; step < steps; ++step) {
    tokens.push_back(corpus.TrainingBatch(config.batch, config.seed, step));
    entries.push_back({absl::StrCat("step.", step, ".tokens"),
                       DType::kI32,
                       {config.batch, config.sequence + 1},
                       tokens.back().data()});
  }
  entries.push_back({"losses", DType::kF64, {steps}, result.losses.data()});
  entries.push_back({"grad_norms", DType::kF64, {steps}, result.grad_norms.data()});
  const TransformerConfig& model = config.model;
  const auto text = [](auto value) { return absl::StrCat(value); };
  const bool is_sigmoid = model.router_score == RouterScore::kSigmoid;
  return OfFlag("--dump", WriteSafetensors(path, entries,
                                           {{"vocab", text(model.vocab)},
                                            {"dim", text(model.dim)},
                                            {"layers", text(model.layers)},
                                            {"heads", text(model.heads)},
                                            {"kv_heads", text(model.kv_heads)},
                                            {"hidden", text(model.mlp_hidden())},
                                            {"experts", text(model.experts)},
                                            {"experts_per_token", text(model.experts_per_token)},
                                            {"balance", ExactText(config.balance)},
                                            {"sigmoid_router", text(is_sigmoid ? 1 : 0)},
                                            {"bias_rate", ExactText(config.bias_rate)},
                                            {"rope_theta", ExactText(model.rope_theta)},
                                            {"norm_eps", ExactText(model.norm_eps)},
                                            {"batch", text(config.batch)},
                                            {"seq", text(config.sequence)},
                                            {"steps", text(steps)},
                                            {"lr", ExactText(config.lr)},
                                            {"warmup", text(config.warmup)},
                                            {"beta1", ExactText(config.adamw.beta1)},
                                            {"beta2", ExactText(config.adamw.beta2)},
                                            {"eps", ExactText(config.adamw.eps)},
                                            {"weight_decay", ExactText(config.adamw.weight_decay)},
                                            {"clip", ExactText(config.clip)},
                                            {"decayed", absl::StrJoin(decayed, ",")}}));
}

}  // namespace dtensor::training
