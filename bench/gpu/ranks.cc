// What ranks do together: see figure.h.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/bench/gpu/bare_nccl.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/examples/training/trainer.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::bench {
namespace {

// Seconds of one call of each on all ranks, of its fastest round; rounds are taken in turn.
absl::StatusOr<std::vector<double>> RankSecondsInTurn(Context& context, const Scale& scale,
                                                      const std::vector<Call>& calls) {
  std::vector<double> fastest(calls.size());
  for (int round = 0; round < 1 + scale.rounds(); ++round) {  // the first makes plans
    for (size_t which = 0; which < calls.size(); ++which) {
      DT_ASSIGN_OR_RETURN(const double seconds, TimeOnAllRanks(context, [&]() -> absl::Status {
                            for (int i = 0; i < scale.calls(); ++i) {
                              DT_RETURN_IF_ERROR(calls[which]());
                            }
                            return absl::OkStatus();
                          }));
      const double one = seconds / scale.calls();
      if (round > 0) fastest[which] = round == 1 ? one : std::min(fastest[which], one);
    }
  }
  return fastest;
}

absl::StatusOr<double> RankSeconds(Context& context, const Scale& scale, const Call& call) {
  DT_ASSIGN_OR_RETURN(const std::vector<double> seconds, RankSecondsInTurn(context, scale, {call}));
  return seconds[0];
}

using MeasureOnRank = std::function<absl::Status(Context&)>;

absl::Status OnRanks(int ranks, const MeasureOnRank& measure) {
  RunOptions options;
  options.device = Device::Kind::kCuda;
  options.timeout_seconds = 300;
  return RunLocalRanks(
      ranks,
      [&](Communicator& communicator, Device& device) {
        Context context(communicator, device);
        return measure(context);
      },
      options);
}

// --- Exchanges, by the conventions of nccl-tests: a rate of algorithm is the bytes of the whole
// tensor (of what a rank has, for an all-to-all) over the time; that of the bus is what would go
// through each rank's link if the collective moved the least that it can.

struct Exchange {
  const char* name;
  Placement from, to;
  double bus;  // factor, where n ranks have (n - 1) / n of it
  // What each of n ranks reads and writes of memory, in tensors: a + b / n; of an all-reduce, as a
  // reduce-scatter and an all-gather.
  double a, b;
  bool in_any_order = false;  // sums, by NCCL
};
const Exchange kExchanges[] = {{"all_gather", Shard(0), Replicate(), 1, 2, 0},
                               {"reduce_scatter", Partial(), Shard(0), 1, 1, 1},
                               {"all_reduce", Partial(), Replicate(), 2, 3, 1},
                               {"all_to_all", Shard(0), Shard(1), 1, 0, 2},
                               {"reduce_scatter_any_order", Partial(), Shard(0), 1, 1, 1, true},
                               {"all_reduce_any_order", Partial(), Replicate(), 2, 3, 1, true}};

int64_t RoundUp(int64_t size, int64_t to) {
  return std::max<int64_t>((size + to - 1) / to, 1) * to;
}

// Bytes that a copy on the GPU reads and writes in a second.
absl::StatusOr<double> CopyRate(Device& device, const Scale& scale) {
  const int64_t n = scale.Of(64 << 20, 1 << 10);
  DT_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(device, DType::kF32, {n}));
  DT_ASSIGN_OR_RETURN(const Tensor y, Tensor::Empty(device, DType::kF32, {n}));
  DT_RETURN_IF_ERROR(kernels::Fill(device, x, 1));
  DT_ASSIGN_OR_RETURN(const double seconds, SecondsOf(device, scale, [&] {
                        return device.CopyOnDevice(y.raw(), x.raw(), x.bytes());
                      }));
  return 2 * static_cast<double>(x.bytes()) / seconds;
}

// Whose exchanges are measured, and beside what.
struct Beside {
  const char* by;
  double copy = 0;           // the rate of a copy where all ranks share a GPU, else 0
  BareNccl* bare = nullptr;  // calls of NCCL's own, for what it has
};

// NCCL's own call for an exchange that gives this rank so many elements for its `local`; null for
// an all-reduce.
absl::StatusOr<Call> BareCall(Context& context, const Beside& beside, const Exchange& exchange,
                              const Tensor& local, int64_t elements) {
  const bool adds = exchange.from == Partial(), gathers = exchange.to == Replicate();
  if (beside.bare == nullptr || (adds && gathers)) return Call();
  const int64_t received = adds ? elements / context.world_size() : elements;
  DT_ASSIGN_OR_RETURN(const Tensor result,
                      Tensor::Empty(context.device(), DType::kF32, {received}));
  return Call([local, result, bare = beside.bare, adds, gathers] {
    if (adds) return bare->ReduceScatter(local, result);
    return gathers ? bare->AllGather(local, result) : bare->AllToAll(local, result);
  });
}

absl::Status MeasureExchange(Context& context, const Scale& scale, const Beside& beside,
                             const Exchange& exchange, int64_t bytes, const Report& report) {
  const int n = context.communicator().size();
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("x=", n)));
  // As many rows and columns as are split alike.
  const int64_t columns = RoundUp(1024, n), rows = RoundUp(bytes / 4 / columns, n);
  const bool is_part = exchange.from == Shard(0);
  DT_ASSIGN_OR_RETURN(const Tensor local, Tensor::Empty(context.device(), DType::kF32,
                                                        {is_part ? rows / n : rows, columns}));
  DT_RETURN_IF_ERROR(kernels::Fill(context.device(), local, 1));
  const Dims shape = {rows, columns};
  const bool of_rank = exchange.to == Shard(1);
  const int64_t counted = rows * columns / (of_rank ? n : 1);  // elements
  RedistributeOptions options;
  if (exchange.in_any_order) options.plan = RedistributionOptions{.sums_in_any_order = true};
  std::vector<Call> calls = {[&] {
    // Another tensor each time: what was moved before is not remembered.
    const TensorOr x = FromLocal(context, mesh, {exchange.from}, shape, local);
    return x.ok() ? x->Redistribute({exchange.to}, options).status() : x.status();
  }};
  DT_ASSIGN_OR_RETURN(const Call bare, BareCall(context, beside, exchange, local, counted));
  if (bare != nullptr) calls.push_back(bare);
  DT_ASSIGN_OR_RETURN(const std::vector<double> seconds, RankSecondsInTurn(context, scale, calls));
  if (context.rank() != 0) return absl::OkStatus();
  const double algorithm = 4 * static_cast<double>(counted) / seconds[0] / 1e9;
  const double bus = algorithm * exchange.bus * (n - 1) / n;
  Figure figure = {absl::StrCat(beside.by, "/", exchange.name, "/", n, "/", bytes >> 10, "KiB"),
                   algorithm, "GB/s"};
  figure.remarks = absl::StrCat("bus ", bus, " GB/s");
  if (beside.copy > 0) {
    // Of all ranks together, which is what one GPU does for them.
    const double moved = 4.0 * static_cast<double>(rows * columns) * (exchange.a * n + exchange.b);
    figure.limit = "the copy";
    figure.share = moved / seconds[0] / beside.copy;
  } else if (bare != nullptr) {
    figure.limit = "bare NCCL";
    figure.share = seconds[1] / seconds[0];
  }
  report(figure);
  return absl::OkStatus();
}

absl::Status MeasureExchanges(Context& context, const Scale& scale, const Beside& beside,
                              const Report& report) {
  const std::vector<int64_t> sizes =
      scale.tiny ? std::vector<int64_t>{1 << 13}
                 : std::vector<int64_t>{1 << 16, 1 << 20, 16 << 20, 256 << 20};
  for (const Exchange& exchange : kExchanges) {
    if (exchange.in_any_order && beside.bare == nullptr) continue;
    for (const int64_t bytes : sizes) {
      DT_RETURN_IF_ERROR(MeasureExchange(context, scale, beside, exchange, bytes, report));
    }
  }
  return absl::OkStatus();
}

// --- A ring, beside one rank with all keys and queries, which is n times its work.

absl::StatusOr<RingSchedule> ScheduleOf(int n, int64_t s, int64_t heads, int64_t dim) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("cp=", n)));
  DT_ASSIGN_OR_RETURN(const Layout layout,
                      Layout::FromPlacements(mesh, {Shard(0, ShardOrder::Zigzag())}, {s}));
  return RingSchedule::Create({.q = layout,
                               .kv = layout,
                               .q_length = s,
                               .kv_length = s,
                               .axes = {0},
                               .heads = heads,
                               .kv_heads = heads,
                               .head_dim = dim,
                               .dtype = DType::kBF16,
                               .mask = AttentionMask::Causal()});
}

absl::Status TimeRing(Context& context, const Scale& scale, double* forward, double* backward) {
  const int64_t s = scale.Of(16384, 128), heads = scale.Of(16, 1), dim = scale.Of(128, 16);
  DT_ASSIGN_OR_RETURN(const RingSchedule schedule,
                      ScheduleOf(context.communicator().size(), s, heads, dim));
  const RankRing ring(schedule, context.rank());
  const Dims shape = {1, schedule.q_positions(ring.ring_rank()).size(), heads, dim};
  std::vector<Tensor> x(8);  // q, k, v, o, dout, dq, dk, dv
  Device& device = context.device();
  for (Tensor& one : x) {
    DT_ASSIGN_OR_RETURN(one, Tensor::Empty(device, DType::kBF16, shape));
    DT_RETURN_IF_ERROR(kernels::Fill(device, one, 0.25));
  }
  DT_ASSIGN_OR_RETURN(const Tensor lse, Tensor::Empty(device, DType::kF32, {1, heads, shape[1]}));
  const RingOptions options = {.scale = 1 / std::sqrt(static_cast<double>(dim))};
  Communicator& communicator = context.communicator();
  DT_ASSIGN_OR_RETURN(*forward, RankSeconds(context, scale, [&] {
    return RunRing(ring, options, x[0], x[1], x[2], communicator, "bench", x[3], lse);
  }));
  DT_ASSIGN_OR_RETURN(*backward, RankSeconds(context, scale, [&] {
    return RunRingBackward(ring, options, x[0], x[1], x[2], x[3], lse, x[4], communicator, "bench",
                           x[5], x[6], x[7]);
  }));
  return absl::OkStatus();
}

absl::Status MeasureRing(int ranks, int gpus, const Scale& scale, const Report& report) {
  double one[2], all[2];
  for (const bool is_ring : {false, true}) {
    double* const seconds = is_ring ? all : one;
    DT_RETURN_IF_ERROR(OnRanks(is_ring ? ranks : 1, [&](Context& context) {
      double mine[2];
      const absl::Status status = TimeRing(context, scale, &mine[0], &mine[1]);
      if (context.rank() == 0) std::copy_n(mine, 2, seconds);
      return status;
    }));
  }
  const int used = std::min(ranks, gpus);
  for (const int i : {0, 1}) {
    report({absl::StrCat("ring/", i == 0 ? "fwd/" : "bwd/", ranks), 1e3 * all[i], "ms",
            absl::StrCat("one rank's time over ", used), one[i] / used / all[i], ""});
  }
  return absl::OkStatus();
}

// --- Steps of a model under tensor and sequence parallelism, beside one rank.

absl::Status TimeModel(Context& context, const Scale& scale, double* seconds) {
  training::TrainConfig config;
  DT_ASSIGN_OR_RETURN(config.mesh,
                      DeviceMesh::Parse(absl::StrCat("tp=", context.communicator().size())));
  config.plan = "tp+sp";
  config.dtype = DType::kBF16;
  config.model.dim = scale.Of(4096, 64);
  config.model.layers = scale.Of(2, 1);
  config.model.heads = config.model.kv_heads = scale.Of(32, 4);
  config.keep_gathered = true;
  config.batch = scale.Of(2, 1);
  config.sequence = scale.Of(2048, 8);
  DT_ASSIGN_OR_RETURN(const auto trainer, training::Trainer::Create(context, config));
  const std::vector<int32_t> tokens(config.batch * (config.sequence + 1), 7);
  const Scale few = {.tiny = true};  // a step is long
  DT_ASSIGN_OR_RETURN(*seconds,
                      RankSeconds(context, few, [&] { return trainer->Step(tokens).status(); }));
  return absl::OkStatus();
}

absl::Status MeasureModel(int ranks, int gpus, const Scale& scale, const Report& report) {
  double one = 0, all = 0;
  for (const bool is_split : {false, true}) {
    DT_RETURN_IF_ERROR(OnRanks(is_split ? ranks : 1, [&](Context& context) {
      double mine = 0;
      const absl::Status status = TimeModel(context, scale, &mine);
      if (context.rank() == 0) (is_split ? all : one) = mine;
      return status;
    }));
  }
  const int used = std::min(ranks, gpus);
  report({absl::StrCat("tensor_parallel/step/", ranks), 1e3 * all, "ms",
          absl::StrCat("one rank's time over ", used), one / used / all, ""});
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureRanks(int ranks, const Scale& scale, const Report& report) {
  DT_ASSIGN_OR_RETURN(const int gpus, CountGpus());
  double copy = 0;
  if (gpus == 1) {
    DT_RETURN_IF_ERROR(OnRanks(1, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(copy, CopyRate(context.device(), scale));
      return absl::OkStatus();
    }));
  }
  DT_RETURN_IF_ERROR(OnRanks(ranks, [&](Context& context) {
    return MeasureExchanges(context, scale, {.by = "exchange", .copy = copy}, report);
  }));
  DT_RETURN_IF_ERROR(MeasureRing(ranks, gpus, scale, report));
  return MeasureModel(ranks, gpus, scale, report);
}

absl::Status MeasureNccl(Context& context, const Scale& scale, const Report& report) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<BareNccl> bare, BareNccl::Make(context));
  return MeasureExchanges(context, scale, {.by = "nccl", .bare = bare.get()}, report);
}

}  // namespace dtensor::bench
