#include "dtensor/runtime/comm/run_ranks.h"

#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local_communicator.h"
#include "dtensor/runtime/comm/world.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

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

absl::Status RunRank(World& world, int rank, Device& device, const RunOptions& options,
                     const std::function<absl::Status(Communicator&, Device&)>& fn) {
  LocalCommunicator communicator(world, rank, device, options.seed, options.max_delay_us);
  absl::Status status = fn(communicator, device);
  world.Leave(rank, status);
  return status;
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

}  // namespace

absl::Status RunLocalRanks(int n, const std::function<absl::Status(Communicator&, Device&)>& fn,
                           const RunOptions& options) {
  if (n < 1) {
    return InvalidArgument({"RunLocalRanks: there must be at least 1 rank, not ", absl::StrCat(n)});
  }
  if (options.device != Device::Kind::kCpu && options.device != Device::Kind::kDeferred) {
    return InvalidArgument(
        {"RunLocalRanks: ranks as threads need the cpu or the deferred device, not ",
         ToString(options.device)});
  }
  World world(n, options.timeout_seconds);
  std::vector<std::unique_ptr<Device>> devices;
  for (int rank = 0; rank < n; ++rank) {
    devices.push_back(MakeDevice(options, rank));
    devices.back()->set_failure_handler(
        [&world, rank](const absl::Status& status) { world.Fail(rank, status).IgnoreError(); });
  }
  const std::vector<int> cores = options.pin_threads ? CoresFor(n) : std::vector<int>();
  std::vector<absl::Status> results(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      if (!cores.empty()) PinThisThread(cores[rank]);
      results[rank] = RunRank(world, rank, *devices[rank], options, fn);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Before any device goes: a queue may still read the memory of another, and what fails in it now
  // fails the world as well.
  for (const auto& device : devices) device->Synchronize().IgnoreError();
  return Result(world, results);
}

}  // namespace dtensor
