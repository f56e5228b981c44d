// Training speed of //examples/llama on two ranks: tensor and sequence parallelism, data
// parallelism, full sharding. f32, byte vocabulary, AdamW.
//
//   tokens_per_s         of whole steps: batch, forward, backward, reductions, clipping, AdamW
//   product_GF_per_s     f32 product at 1024^3 on one core, measured here just before
//   share_of_product     model FLOPs a second over ranks * product_GF_per_s; model FLOPs are 6 per
//                        weight and token, and causal attention's 6 s d a layer and token
//   step_ms, fastest_ms  the median of the steps, and the fastest
//   predicted_ms         of a step like these, by a simulated run at the rates that MeasureLinks
//                        finds just before; predicted_over_step: over the median
//   predicted_compute_ms, predicted_exposed_ms  of it: in kernels, and waiting for exchanges
//   links_gemm_GF_per_s  the rate of those that products go by
//
// Ranks are threads; started by a launcher (dtrun -n 2 bazel-bin/bench/train) they are processes,
// and in place of the prediction stands
//
//   threads_ms           that of the same steps on threads of rank 0's process, in turn;
//                        over_threads: step_ms / threads_ms
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmark/benchmark.h"
#include "dtensor/bench/beside_processes.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/cli/measure_links.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::training {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double GemmSpeed() {
  constexpr int64_t kSize = 1024;
  const std::unique_ptr<Device> device = MakeCpuDevice();
  Tensor a = *Tensor::Empty(*device, DType::kF32, {kSize, kSize}),
         b = *Tensor::Empty(*device, DType::kF32, {kSize, kSize});
  Tensor c = *Tensor::Empty(*device, DType::kF32, {kSize, kSize});
  std::fill_n(a.data<float>(), kSize * kSize, 1.0f);
  std::fill_n(b.data<float>(), kSize * kSize, 1.0f);
  const GemmProblem gemm = {.m = kSize,
                            .n = kSize,
                            .k = kSize,
                            .a = {a.raw(), kSize, 1, 0},
                            .b = {b.raw(), kSize, 1, 0},
                            .c = {c.raw(), kSize, 1, 0}};
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const Clock::time_point start = Clock::now();
    if (!device->Gemm(gemm).ok()) return 0;
    best = std::min(best, Seconds(start));
  }
  return 2.0 * kSize * kSize * kSize / best / 1e9;
}

// How the two ranks share the work.
struct Way {
  const char *mesh, *plan;
};
constexpr Way kWays[] = {{"tp=2", "tp+sp"}, {"dp=2", "dp"}, {"dp=2", "fsdp"}};

TrainConfig Config(const Way& way, int64_t dim, int64_t layers, int64_t batch, int64_t sequence) {
  TrainConfig config;
  config.mesh = *DeviceMesh::Parse(way.mesh);
  config.plan = way.plan;
  config.model.dim = dim;
  config.model.layers = layers;
  config.model.heads = config.model.kv_heads = dim / 64;
  config.keep_gathered = true;  // there is memory
  config.batch = batch;
  config.sequence = sequence;
  return config;
}

// Of a step after the first, as rank 0 is simulated. Errors: the trainer's.
absl::StatusOr<SimulatedTime> Predict(const TrainConfig& config, absl::Span<const int32_t> tokens,
                                      const CostModel& cost) {
  SimulatedTime step;
  const auto train = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(context, config));
    const SimulatedClock& clock = *context.simulated_clock();
    DT_RETURN_IF_ERROR(trainer->Step(tokens).status());
    const SimulatedTime before = clock.time();
    DT_RETURN_IF_ERROR(trainer->Step(tokens).status());
    step = clock.time() - before;
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(Simulate(0, config.mesh.size(), train, {.cost = cost}));
  return step;
}

double FlopsPerToken(const TrainConfig& config) {
  const TransformerConfig& m = config.model;
  const double kv = static_cast<double>(m.kv_heads * m.head_dim());
  const double block = m.dim * (2.0 * m.dim + 2 * kv + 3.0 * m.mlp_hidden());
  return 6 * (m.layers * block + m.vocab * m.dim) + 6.0 * m.layers * config.sequence * m.dim;
}

constexpr int kWarmUp = 3;

TrainConfig ConfigOf(const benchmark::State& state) {
  return Config(kWays[state.range(4)], state.range(0), state.range(1), state.range(2),
                state.range(3));
}

int StepsOf(const TrainConfig& config) {
  return static_cast<int>(
      std::clamp(4e9 * 100 / (FlopsPerToken(config) * config.batch * config.sequence), 8.0, 100.0));
}

std::vector<int32_t> Tokens(const TrainConfig& config) {
  std::vector<int32_t> tokens(config.batch * (config.sequence + 1));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>((i * 2654435761u) >> 24 & 255);
  }
  return tokens;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Steps of one model. The first are not timed.
class Steps final : public bench::RankWork {
 public:
  Steps(Context& context, const TrainConfig& config) : context_(context), config_(config) {}

  absl::Status Prepare() override {
    tokens_ = Tokens(config_);
    DT_ASSIGN_OR_RETURN(trainer_, Trainer::Create(context_, config_));
    for (int i = 0; i < kWarmUp; ++i) DT_RETURN_IF_ERROR(Step());
    return absl::OkStatus();
  }
  absl::StatusOr<double> TimeRound() override {
    return bench::TimeOnAllRanks(context_, [this] { return Step(); });
  }

 private:
  absl::Status Step() {
    DT_ASSIGN_OR_RETURN(const auto done, trainer_->Step(tokens_));
    return Item(done.loss).status();
  }

  Context& context_;
  const TrainConfig& config_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<Trainer> trainer_;
};

absl::Status TimeProcesses(Context& world, const TrainConfig& config, std::vector<double>& steps,
                           std::vector<double>& on_threads) {
  Steps mine(world, config);
  DT_RETURN_IF_ERROR(mine.Prepare());
  bench::ThreadsBeside threads(
      world, [&](Context& context) { return std::make_unique<Steps>(context, config); });
  DT_RETURN_IF_ERROR(threads.Prepare());
  for (int left = StepsOf(config); left > 0; --left) {
    DT_ASSIGN_OR_RETURN(steps.emplace_back(), mine.TimeRound());
    DT_ASSIGN_OR_RETURN(on_threads.emplace_back(), threads.TimeRound());
  }
  return absl::OkStatus();
}

void BM_TrainOnProcesses(benchmark::State& state, Context& world) {
  const TrainConfig config = ConfigOf(state);
  std::vector<double> steps, on_threads;
  for (auto _ : state) {
    const absl::Status status = TimeProcesses(world, config, steps, on_threads);
    if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
  }
  state.counters["tokens_per_s"] = config.batch * config.sequence / Median(steps);
  state.counters["step_ms"] = 1e3 * Median(steps);
  state.counters["threads_ms"] = 1e3 * Median(on_threads);
  state.counters["over_threads"] = Median(steps) / Median(on_threads);
}

// Seconds of rank 0's steps, ascending. Errors: the trainer's.
absl::StatusOr<std::vector<double>> StepTimes(const TrainConfig& config,
                                              absl::Span<const int32_t> tokens) {
  const int steps = StepsOf(config);
  std::vector<double> times;
  const auto train = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(context, config));
    for (int i = 0; i < steps + kWarmUp; ++i) {
      const Clock::time_point start = Clock::now();
      DT_ASSIGN_OR_RETURN(const auto done, trainer->Step(tokens));
      DT_RETURN_IF_ERROR(Item(done.loss).status());
      if (i >= kWarmUp && context.rank() == 0) times.push_back(Seconds(start));
    }
    return absl::OkStatus();
  };
  DT_RETURN_IF_ERROR(
      RunRanks(config.mesh.size(), train, {.pin_threads = CanPin(config.mesh.size())}));
  std::sort(times.begin(), times.end());
  return times;
}

// The rates of this machine and what is predicted by them just before the steps that it is
// compared with.
absl::Status Train(const TrainConfig& config, benchmark::State& state) {
  const double gemm = GemmSpeed();
  const std::vector<int32_t> tokens = Tokens(config);
  DT_ASSIGN_OR_RETURN(const CostModel cost, cli::MeasureLinks(config.mesh.size()));
  DT_ASSIGN_OR_RETURN(const SimulatedTime predicted, Predict(config, tokens, cost));
  std::vector<double> times;
  for (auto _ : state) {
    DT_ASSIGN_OR_RETURN(times, StepTimes(config, tokens));
  }
  const double median = times[times.size() / 2];
  const double rate = config.batch * config.sequence / median;
  state.counters["tokens_per_s"] = rate;
  state.counters["product_GF_per_s"] = gemm;
  state.counters["share_of_product"] =
      rate * FlopsPerToken(config) / (config.mesh.size() * gemm * 1e9);
  state.counters["step_ms"] = 1e3 * median;
  state.counters["fastest_ms"] = 1e3 * times[0];
  state.counters["predicted_ms"] = 1e3 * predicted.total();
  state.counters["predicted_compute_ms"] = 1e3 * predicted.compute_seconds;
  state.counters["predicted_exposed_ms"] = 1e3 * predicted.exposed_seconds;
  state.counters["links_gemm_GF_per_s"] = cost.rates().GemmFlopsPerSecond(DType::kF32) / 1e9;
  state.counters["predicted_over_step"] = predicted.total() / median;
  return absl::OkStatus();
}

void BM_Train(benchmark::State& state) {
  const absl::Status trained = Train(ConfigOf(state), state);
  if (!trained.ok()) state.SkipWithError(std::string(trained.message()).c_str());
}

}  // namespace

// Each shape in each way: dim, layers, batch, sequence. `world`: null on threads.
void RegisterAll(Context* world) {
  const std::vector<std::vector<int64_t>> shapes = {
      {128, 4, 4, 256}, {256, 4, 8, 256}, {512, 8, 4, 512}};
  for (size_t way = 0; way < std::size(kWays); ++way) {
    for (std::vector<int64_t> args : shapes) {
      const std::string name =
          absl::StrCat("BM_Train/", absl::StrJoin(args, "x"), "/", kWays[way].plan);
      args.push_back(static_cast<int64_t>(way));
      const auto run = [world](benchmark::State& state) {
        world == nullptr ? BM_Train(state) : BM_TrainOnProcesses(state, *world);
      };
      benchmark::RegisterBenchmark(name.c_str(), run)
          ->Args(args)
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

// Every process runs the same benchmarks. Errors: of JoinWorld; the world's failure.
absl::Status RunAll() {
  std::unique_ptr<JoinedWorld> world;
  if (const int launched = LaunchedRanks(); launched > 0) {
    if (launched != 2) return InvalidArgument({"start 2 processes: each shape is for two ranks"});
    DT_ASSIGN_OR_RETURN(world, JoinWorld());
    bench::PinTo(world->context().rank());
  }
  RegisterAll(world == nullptr ? nullptr : &world->context());
  bench::RunBenchmarks();
  return world == nullptr ? absl::OkStatus() : world->Leave(absl::OkStatus());
}

}  // namespace dtensor::training

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const absl::Status status = dtensor::training::RunAll();
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
