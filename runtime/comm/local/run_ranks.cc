#include "dtensor/runtime/comm/local/run_ranks.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/comm/local/local_communicator.h"
#include "dtensor/runtime/comm/local/local_world.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/comm/simulated/simulated_communicator.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"

namespace dtensor {
namespace {

constexpr int kMaxRanks = 1 << 20;

absl::Status CheckRun(int n, const RankFunction& fn, const RunOptions& options) {
  if (n < 1 || n > kMaxRanks) {
    return InvalidArgument({"RunLocalRanks: there must be 1 to ", absl::StrCat(kMaxRanks),
                            " ranks, not ", absl::StrCat(n)});
  }
  if (!fn) return InvalidArgument({"RunLocalRanks: the function that ranks run is null"});
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument({"RunLocalRanks: timeout_seconds must be above 0, not ",
                            absl::StrCat(options.timeout_seconds), "; infinity waits for ever"});
  }
  if (options.max_delay_us < 0) {
    return InvalidArgument({"RunLocalRanks: max_delay_us must be 0 or more, not ",
                            absl::StrCat(options.max_delay_us)});
  }
  if (options.device != Device::Kind::kCpu && options.device != Device::Kind::kDeferred) {
    return InvalidArgument(
        {"RunLocalRanks: ranks as threads need the cpu or the deferred device, not ",
         ToString(options.device)});
  }
  return absl::OkStatus();
}

std::unique_ptr<Device> MakeDevice(const RunOptions& options, int rank) {
  if (options.device == Device::Kind::kCpu) return MakeCpuDevice();
  return MakeDeferredDevice({.seed = options.seed + rank, .max_delay_us = options.max_delay_us});
}

// The cores that this thread may run on, if they suffice for n ranks.
std::vector<int> CoresFor(int n) {
  std::vector<int> cores;
#if defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
#endif
  if (static_cast<int>(cores.size()) < n) cores.clear();
  return cores;
}

// As well as the system lets us: a rank runs on any core otherwise.
void PinThisThread(int core) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
#endif
}

// One thread for each rank; they wait at a gate until it is known whether all could be started.
class RankThreads {
 public:
  explicit RankThreads(int n) { threads_.reserve(n); }
  ~RankThreads() {
    Open(false);
    for (std::thread& thread : threads_) thread.join();
  }

  // Throws what std::thread does.
  void Add(std::function<void()> run) {
    threads_.emplace_back([this, run = std::move(run)] {
      gate_.wait();
      if (all_started_) run();
    });
  }
  void Open(bool all_started) {
    if (gate_.try_wait()) return;  // it is open
    all_started_ = all_started;
    gate_.count_down();
  }

 private:
  std::vector<std::thread> threads_;
  std::latch gate_{1};
  bool all_started_ = false;
};

// Looks after the ranks while they run, and says what RunOptions::report is told.
class Watch {
 public:
  Watch(World& world, const RunOptions& options) : world_(world), options_(options) {}

  void UntilAllLeft() {
    constexpr auto kNever = Clock::duration(std::chrono::hours(24 * 365));
    auto deadline = Clock::now() + kNever;
    bool counting = false, warned = false;
    while (true) {
      const uint64_t seen = world_.alarm();
      const bool news = TellFailure();
      if (world_.all_left()) return;
      if (news || (!counting && !Trouble().ok())) {
        counting = true;
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(world_.timeout());
      }
      if (counting && !warned && Clock::now() >= deadline) {
        warned = true;
        Tell(StillWaits());
      }
      world_.AwaitAlarm(seen, warned ? Clock::now() + kNever : deadline);
    }
  }

  // Whether it failed since the last call.
  bool TellFailure() {
    if (told_ || !world_.failed()) return false;
    told_ = true;
    Tell(world_.failure());
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  absl::Status Trouble() const {
    return world_.failed() ? world_.failure() : world_.returned_error();
  }
  absl::Status StillWaits() const {
    const std::vector<int> running = world_.running();
    return absl::DeadlineExceededError(absl::StrCat(
        running.size() == 1 ? "rank " : "ranks ", absl::StrJoin(running, ", "),
        running.size() == 1 ? " has" : " have", " not returned ", world_.timeout().count(),
        " s after this, and the run waits for that: ", Trouble().message()));
  }
  void Tell(const absl::Status& trouble) const {
    if (!options_.report) return;
    NoThrow([&] {
      options_.report(trouble);
      return absl::OkStatus();
    }).IgnoreError();
  }

  World& world_;
  const RunOptions& options_;
  bool told_ = false;
};

absl::Status RunRank(LocalWorld& ranks, int rank, const RunOptions& options,
                     const RankFunction& fn) {
  absl::Status status = NoThrow([&] {
    auto& communicator = ranks.communicators[rank];
    communicator = std::make_unique<LocalCommunicator>(*ranks.world, rank, *ranks.devices[rank],
                                                       options.seed, options.max_delay_us);
    DT_RETURN_IF_ERROR(fn(*communicator, *ranks.devices[rank]));
    return communicator->FinishDropped();
  });
  ranks.world->Leave(rank, status);
  return status;
}

// A device and a thread for each rank. Errors: kResourceExhausted, naming the first rank without.
absl::Status StartRanks(LocalWorld& ranks, int n, const RunOptions& options,
                        const std::function<void(int)>& run, RankThreads& threads) {
  World& world = *ranks.world;
  for (int rank = 0; rank < n; ++rank) {
    try {
      ranks.devices.push_back(MakeDevice(options, rank));
      ranks.devices.back()->set_failure_handler(
          [&world, rank](const absl::Status& status) { world.Fail(rank, status).IgnoreError(); });
      threads.Add([&run, rank] { run(rank); });
    } catch (const std::exception& exception) {
      return absl::ResourceExhaustedError(
          absl::StrCat("RunLocalRanks: the system has no thread or memory for rank ", rank, " of ",
                       n, " (", exception.what(),
                       "); run fewer, or raise the limits of the process (ulimit -u, ulimit -v)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Result(const World& world, const std::vector<absl::Status>& results) {
  if (world.failed()) return world.failure();
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const absl::Status& status = results[rank];
    if (status.ok()) continue;
    return absl::Status(status.code(), absl::StrCat("rank ", rank, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status RunAll(LocalWorld& ranks, int n, const RankFunction& fn, const RunOptions& options) {
  ranks.world = std::make_unique<World>(n, options.timeout_seconds);
  ranks.communicators.resize(n);
  const std::vector<int> cores = options.pin_threads ? CoresFor(n) : std::vector<int>();
  std::vector<absl::Status> results(n);
  const std::function<void(int)> run = [&](int rank) {
    if (!cores.empty()) PinThisThread(cores[rank]);
    results[rank] = RunRank(ranks, rank, options, fn);
  };
  Watch watch(*ranks.world, options);
  {
    RankThreads threads(n);
    DT_RETURN_IF_ERROR(StartRanks(ranks, n, options, run, threads));
    threads.Open(true);
    watch.UntilAllLeft();
  }
  // Before any device goes: a queue may still read the memory of another, and what fails in it now
  // fails the world as well.
  for (const auto& device : ranks.devices) device->Synchronize().IgnoreError();
  for (const auto& communicator : ranks.communicators) {
    if (communicator != nullptr) communicator->End();
  }
  watch.TellFailure();
  return Result(*ranks.world, results);
}

}  // namespace

void PrintOnStderr(const absl::Status& trouble) {
  std::fprintf(stderr, "dtensor: %s\n", trouble.ToString().c_str());
}

absl::Status RunLocalRanks(int n, const RankFunction& fn, const RunOptions& options) {
  DT_RETURN_IF_ERROR(CheckRun(n, fn, options));
  auto ranks = std::make_unique<LocalWorld>();
  const absl::Status status = NoThrow([&] { return RunAll(*ranks, n, fn, options); });
  LetGo(std::move(ranks));
  return status;
}

absl::Status RunSimulatedRank(int rank, int size, const RankFunction& fn,
                              const MachineRates& rates) {
  if (size < 1 || rank < 0 || rank >= size) {
    return InvalidArgument(
        {"Simulate: there is no rank ", absl::StrCat(rank), " of ", absl::StrCat(size)});
  }
  if (!fn) return InvalidArgument({"Simulate: the function to run is null"});
  auto ranks = std::make_unique<LocalWorld>();
  ranks->devices.push_back(MakeMetaDevice(rates));
  ranks->simulated = MakeSimulatedCommunicator(rank, size, ClockOf(*ranks->devices[0]));
  const absl::Status status = NoThrow([&] { return fn(*ranks->simulated, *ranks->devices[0]); });
  LetGo(std::move(ranks));
  return status;
}

}  // namespace dtensor
