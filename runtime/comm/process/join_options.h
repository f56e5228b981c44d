// What a program says about its process as a rank of a world of processes.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_JOIN_OPTIONS_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_JOIN_OPTIONS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/report.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cuda/rank_device.h"
#include "dtensor/runtime/device/device.h"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace DTENSOR_EXPORT dtensor {

// `rank` to `secret` are taken from the environment, as launchers set it, if they are not set here
// (launch.h has the order).
struct JoinOptions {
  std::optional<int> rank = {}, size = {}, local_rank = {};
  std::string address = {};     // "host:port" where rank 0 listens
  std::string job = {};         // so that ranks of two jobs at one address do not mix
  std::string secret = {};      // needed if other hosts can reach the address
  double timeout_seconds = 60;  // until all ranks have joined; later, for a rank that is silent
  // kCpu or kCuda, the same on all ranks. With kCuda each rank has a GPU of its own and exchanges
  // by NCCL; the program must be built with --config=cuda (docs/status.md says what has run where).
  Device::Kind device = Device::Kind::kCpu;
  // The CUDA ordinal of this rank's GPU, among those visible to this process. Unset: the only
  // visible GPU, else number local_rank modulo the number of visible GPUs.
  std::optional<int> gpu = {};
  // Makes this rank's device on that GPU, for programs that bring their own stream or allocator.
  // Null: the device has a stream of its own, and memory of CUDA's pool.
  CudaDeviceMaker cuda_device = nullptr;
  // An ncclComm_t that the program has created, for exchanges among all ranks. It must contain all
  // ranks of the world in their order, each on its GPU. Create it with blocking = 0, else a call
  // that waits for a rank that died may not return. It must outlive the world and must not be used
  // for anything else meanwhile. The program destroys it; if the world fails, it is revoked. Null:
  // the library creates a communicator.
  ncclComm* nccl = nullptr;
  // Set to true if NCCL cannot revoke `nccl`, because it has failed or its operations do not end.
  // Then it is aborted, and the program must neither use nor destroy it. Read the flag after the
  // world is gone. May be null.
  std::shared_ptr<std::atomic<bool>> nccl_is_gone = nullptr;
  // Called once, with kDeadlineExceeded, if some rank has still not returned timeout_seconds after
  // the others, which wait for it. Only the lowest waiting rank calls it, on the thread that is in
  // Leave(). Null: nothing is reported.
  std::function<void(const absl::Status&)> report = PrintOnStderr;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_JOIN_OPTIONS_H_
