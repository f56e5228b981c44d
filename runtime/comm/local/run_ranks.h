// Ranks as threads of one process, as tests, the demo and a laptop use them; and one rank of a
// simulated world.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_RUN_RANKS_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_RUN_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/lent_threads.h"
#include "dtensor/runtime/comm/report.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/machine_rates.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

struct RunOptions {
  Device::Kind device = Device::Kind::kCpu;  // kCpu, kDeferred or kCuda
  // On cuda: the GPU of rank r is gpus[r % gpus.size()]; several ranks may share one. Empty: all
  // GPUs that CUDA sees, in CUDA's order. Those of the ranks must be able to read each other's
  // memory; others are not used.
  std::vector<int> gpus = {};
  // On cuda: creates the ranks' devices, to use the program's own streams or allocator. Null: each
  // rank has a stream of its own, and memory of CUDA's pool.
  CudaDeviceMaker cuda_device = nullptr;
  double timeout_seconds = 60;  // a peer silent for longer fails the world; above 0
  uint64_t seed = 0;            // of the random delays below
  int max_delay_us = 0;  // injected before each exchange (and launch, on deferred); 0 or more
  // Pins each rank's thread to a core of its own, to which no other world of this process pins.
  // Refused if the process may not use enough cores: see CanPin().
  bool pin_threads = false;
  // Called on the calling thread, to report what the blocked call cannot return yet: the world's
  // failure, as soon as it happens; and once, with kDeadlineExceeded, that the call still waits for
  // a rank that has not returned timeout_seconds after that failure or after another rank's error.
  // Null: nothing is reported.
  std::function<void(const absl::Status&)> report = PrintOnStderr;
  // Runs the ranks on threads of your own, such as a thread pool, instead of threads that the world
  // creates. For each run it is called n times, on the caller's thread, with a function to run on
  // some other thread; it may block until a thread is free. All n functions must run concurrently:
  // the ranks start when all have been entered, and the run fails if that takes longer than
  // timeout_seconds (LentThreads::Borrow). After the run the threads are free again. Kernels run on
  // their rank's thread alone. Cannot be combined with pin_threads.
  Executor executor = nullptr;
  // Where the memory of tensors comes from: blocks of 1 MiB and more (resource_pages.h), on cpu.
  // All ranks call it, each on its own thread. It is kept until the tensors are gone. Null: the
  // system.
  std::shared_ptr<std::pmr::memory_resource> memory = nullptr;
};

// Whether n ranks could be pinned now.
bool CanPin(int n);

// What one rank runs, on its own thread. An exception that leaves it is its error: kInternal with
// the exception's text, kResourceExhausted for std::bad_alloc.
using RankFunction = std::function<absl::Status(Communicator&, Device&)>;

// Runs fn(communicator, device) on n threads, one for each rank, and waits for all of them and for
// what they launched. Returns the world's failure if it failed, even if fn ignored it; otherwise
// the lowest rank's error, prefixed "rank R: " unless it names a rank so; otherwise OK. Tensors
// that outlive fn keep the world's memory alive, but cannot be exchanged any more. Errors, after
// which fn is called on no rank: kInvalidArgument for n < 1, n > 2^20, a null function, a time-out
// or delay out of range, another device, options that exclude each other; kUnavailable if there is
// no such GPU, or if one cannot read another's memory; kResourceExhausted if the system lacks
// threads, cores to pin them to, or memory for them.
absl::Status RunLocalRanks(int n, const RankFunction& fn, const RunOptions& options = {});

// Runs fn once, on this thread, as rank `rank` of `size`: every exchange is counted and none takes
// place. The device is a meta device whose clock (meta_device.h) uses `rates`. Errors:
// kInvalidArgument for a rank outside of the world, or a null function; fn's.
absl::Status RunSimulatedRank(int rank, int size, const RankFunction& fn,
                              const MachineRates& rates = {});

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_RUN_RANKS_H_
