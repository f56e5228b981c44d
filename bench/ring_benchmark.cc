// Ring attention on ranks that are threads, beside one rank with all queries and keys: batch 1, 4
// heads, the same work in all.
//
//   bazel run //bench:ring -- --benchmark_filter='bwd/4096/128/causal/bf16'
//
//   kernel_ratio   thread CPU time inside attention's kernels, summed over the ranks, over that of
//                  one rank: what it costs to cut the keys and queries
//   other_ratio    inside other kernels (sums of gradients, rounding), over the same
//
// The fastest of all runs on either side. A kernel of one rank runs at a time: with more ranks than
// cores they would fight for the caches, which is no property of the ring.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/attention/ring_schedule.h"
#include "dtensor/layout/placement.h"
#include "dtensor/runtime/comm/local/local_communicator.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/indexed.h"

namespace dtensor {
namespace {

constexpr int64_t kHeads = 4;

struct Row {
  int64_t s, d;
  bool causal, backward;
  DType dtype;
  int cp;
};

std::string NameOf(const Row& row) {
  return absl::StrCat(row.backward ? "bwd/" : "fwd/", row.s, "/", row.d, "/",
                      row.causal ? "causal/" : "full/", std::string(ToString(row.dtype)),
                      "/cp=", row.cp);
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Times {
  double attention = 0, other = 0;
};
bool IsFaster(const Times& a, const Times& b) { return a.attention < b.attention; }

// The CPU, with a clock around each kernel.
class TimedDevice final : public Device {
 public:
  // Of a kind whose launches are handed to LaunchHost.
  explicit TimedDevice(std::mutex& one_at_a_time)
      : Device(Kind::kDeferred), cpu_(MakeCpuDevice()), one_at_a_time_(one_at_a_time) {}

  Times TakeTimes() { return std::exchange(times_, Times()); }

 private:
  absl::StatusOr<void*> DoAllocate(int64_t bytes) override { return cpu_->Allocate(bytes); }
  void DoFree(void* data, int64_t bytes) override { cpu_->Free(data, bytes); }

  absl::Status LaunchHost(const char* kernel, std::function<absl::Status()> fn) override {
    if (kernel == absl::string_view("Exchange")) return fn();
    const std::lock_guard<std::mutex> lock(one_at_a_time_);
    const double start = ThreadSeconds();
    absl::Status status = fn();
    const bool attention = absl::StartsWith(kernel, "attention");
    (attention ? times_.attention : times_.other) += ThreadSeconds() - start;
    return status.ok() ? status : FailKernel(kernel, status);
  }

  absl::Status DoCopy(void* dst, const void* src, int64_t bytes) override {
    return cpu_->CopyOnDevice(dst, src, bytes);
  }
  absl::Status DoFill(void* dst, uint8_t value, int64_t bytes) override {
    return cpu_->FillBytes(dst, value, bytes);
  }
  absl::Status DoGemm(const GemmProblem& gemm) override { return cpu_->Gemm(gemm); }
  DeviceEvent DoRecord() override { return DeviceEvent(); }
  absl::Status DoWait(const DeviceEvent& event) override {
    event.state()->Block();
    return absl::OkStatus();
  }
  absl::Status DoSynchronize() override { return absl::OkStatus(); }
  void DoDefer(std::function<void()> fn) override { fn(); }

  const std::unique_ptr<Device> cpu_;
  std::mutex& one_at_a_time_;
  Times times_;
};

RingSchedule ScheduleOf(const Row& row) {
  const DeviceMesh mesh = DeviceMesh::Parse(absl::StrCat("cp=", row.cp)).value();
  const Layout layout =
      Layout::FromPlacements(mesh, {Shard(0, ShardOrder::Zigzag())}, {row.s}).value();
  return RingSchedule::Create(
             {.q = layout,
              .kv = layout,
              .q_length = row.s,
              .kv_length = row.s,
              .axes = {0},
              .heads = kHeads,
              .kv_heads = kHeads,
              .head_dim = row.d,
              .dtype = row.dtype,
              .mask = row.causal ? AttentionMask::Causal() : AttentionMask::Full()})
      .value();
}

Tensor Noise(Device& device, DType dtype, const Dims& shape, uint64_t seed) {
  auto tensor = Tensor::Empty(device, dtype, shape);
  DT_CHECK(tensor.ok());
  std::vector<IndexSet> region;
  for (const int64_t size : shape) region.push_back(IndexSet::Interval(0, size));
  DT_CHECK(kernels::RandomNormal(device, region, shape, seed, 1, 0, 1, *tensor).ok());
  return *tensor;
}

// One rank's operands and results.
class Rank {
 public:
  Rank(const Row& row, const RingSchedule& schedule, Communicator& communicator,
       TimedDevice& device)
      : row_(row),
        communicator_(communicator),
        device_(device),
        ring_(schedule, communicator.rank()),
        options_({.scale = 1 / std::sqrt(static_cast<double>(row.d))}),
        shape_({1, schedule.q_positions(ring_.ring_rank()).size(), kHeads, row.d}),
        q_(Make()),
        k_(Make()),
        v_(Make()),
        dout_(Make()),
        o_(Make()),
        dq_(Make()),
        dk_(Make()),
        dv_(Make()),
        lse_(Noise(device, AccumulatorOf(row.dtype), {1, kHeads, shape_[1]}, 9)) {}

  // The pass that the row measures.
  Times Run() {
    if (row_.backward && !ready_) DT_CHECK(Forward().ok());
    ready_ = true;
    device_.TakeTimes();
    DT_CHECK((row_.backward ? Backward() : Forward()).ok());
    return device_.TakeTimes();
  }

 private:
  Tensor Make() { return Noise(device_, row_.dtype, shape_, ++seed_); }
  absl::Status Forward() {
    return RunRing(ring_, options_, q_, k_, v_, communicator_, "Ring", o_, lse_);
  }
  absl::Status Backward() {
    return RunRingBackward(ring_, options_, q_, k_, v_, o_, lse_, dout_, communicator_, "Ring", dq_,
                           dk_, dv_);
  }

  const Row row_;
  uint64_t seed_ = 0;
  Communicator& communicator_;
  TimedDevice& device_;
  const RankRing ring_;
  const RingOptions options_;
  const Dims shape_;
  const Tensor q_, k_, v_, dout_, o_, dq_, dk_, dv_, lse_;
  bool ready_ = false;
};

// All ranks' kernels, in the fastest of some runs.
Times FastestOf(const Row& row) {
  constexpr int kRuns = 3;
  const RingSchedule schedule = ScheduleOf(row);
  std::mutex one_at_a_time, adding;
  World world(row.cp, 600);
  std::vector<std::unique_ptr<TimedDevice>> devices;
  for (int rank = 0; rank < row.cp; ++rank) {
    devices.push_back(std::make_unique<TimedDevice>(one_at_a_time));
  }
  std::vector<Times> runs(kRuns);
  std::vector<std::thread> threads;
  for (int r = 0; r < row.cp; ++r) {
    threads.emplace_back([&, r] {
      LocalCommunicator communicator(world, r, *devices[r]);
      {
        Rank rank(row, schedule, communicator, *devices[r]);
        for (Times& run : runs) {
          const Times times = rank.Run();
          const std::lock_guard<std::mutex> lock(adding);
          run.attention += times.attention;
          run.other += times.other;
        }
        DT_CHECK(communicator.Barrier("end").ok());
      }
      world.Leave(r, absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::min_element(runs.begin(), runs.end(), IsFaster);
}

void Run(benchmark::State& state, const Row& row) {
  Row alone = row;
  alone.cp = 1;
  Times one = {1e9, 0}, ring = {1e9, 0};
  for (auto _ : state) {
    one = std::min(one, FastestOf(alone), IsFaster);
    ring = std::min(ring, FastestOf(row), IsFaster);
    state.SetIterationTime(ring.attention + ring.other);
  }
  state.counters["kernel_ratio"] = ring.attention / one.attention;
  state.counters["other_ratio"] = ring.other / one.attention;
}

const bool registered = [] {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool backward : {false, true}) {
      for (const int64_t s : {1024, 2048, 4096, 8192}) {
        for (const int64_t d : {64, 128}) {
          for (const bool causal : {true, false}) {
            for (const int cp : {2, 4, 8}) {
              const Row row = {s, d, causal, backward, dtype, cp};
              benchmark::RegisterBenchmark(NameOf(row).c_str(), [row](benchmark::State& state) {
                Run(state, row);
              })->UseManualTime();
            }
          }
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace dtensor
