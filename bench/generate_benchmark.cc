// Decoding with a cache of keys and values: a model of SmolLM2-135M's sizes with random weights, in
// f32, one rank on one core, greedy; the row has that many tokens behind it. peers/generate.py runs
// PyTorch's beside it.
//
//   tokens_per_s   of the median step
//   step_ms        the median, and fastest_ms
//   weights_GB_s   the weights' bytes over the median: a step reads all of them once
//   prefill_ms     of the tokens behind it, all at once
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "dtensor/generation/sampling.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TransformerConfig SmolLm2() {
  TransformerConfig config;
  config.vocab = 49152, config.dim = 576, config.layers = 30, config.heads = 9, config.kv_heads = 3;
  config.hidden = 1536, config.rope_theta = 1e5, config.tie_embeddings = true;
  return config;
}

absl::Status Decode(benchmark::State& state, Context& context) {
  const int64_t behind = state.range(0);
  Transformer model(SmolLm2());
  const DeviceMesh mesh;
  DT_RETURN_IF_ERROR(model.Materialize(context, mesh, 1));
  int64_t bytes = 0;
  model.VisitParameters([&](const std::string&, const Parameter& parameter) {
    bytes += parameter.tensor.local().bytes();
  });
  DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(model, {.capacity = behind + 1}));
  // The token behind these ids.
  const auto next = [&](const std::vector<int64_t>& ids) -> absl::StatusOr<std::vector<int64_t>> {
    DT_ASSIGN_OR_RETURN(const DistributedTensor given,
                        Distribute<int64_t>(context, Layout::Replicated(mesh, 2),
                                            {1, static_cast<int64_t>(ids.size())}, ids));
    DT_ASSIGN_OR_RETURN(const DistributedTensor logits, cache->Append(given));
    return SampleTokens(logits, {}, cache->lengths());
  };
  const Clock::time_point begin = Clock::now();
  DT_ASSIGN_OR_RETURN(std::vector<int64_t> token, next(std::vector<int64_t>(behind, 5)));
  const double prefill = SecondsSince(begin);
  std::vector<double> seconds;
  for (auto _ : state) {
    const Clock::time_point start = Clock::now();
    DT_ASSIGN_OR_RETURN(token, next(token));
    seconds.push_back(SecondsSince(start));
    state.SetIterationTime(seconds.back());
    DT_RETURN_IF_ERROR(cache->Truncate(0, behind));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  state.counters["tokens_per_s"] = 1 / median;
  state.counters["step_ms"] = median * 1e3;
  state.counters["fastest_ms"] = seconds[0] * 1e3;
  state.counters["weights_GB_s"] = static_cast<double>(bytes) / median * 1e-9;
  state.counters["prefill_ms"] = prefill * 1e3;
  return absl::OkStatus();
}

void BM_Decode(benchmark::State& state) {
  const absl::Status status = RunRanks(1, [&](Context& context) { return Decode(state, context); });
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}
BENCHMARK(BM_Decode)->Arg(32)->Arg(512)->Arg(2048)->Iterations(40)->UseManualTime();

}  // namespace
}  // namespace dtensor
