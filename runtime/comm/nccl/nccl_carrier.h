// Exchanges by NCCL between processes that have a GPU each.
//
// Normally an exchange consists of grouped sends and receives of packed boxes: the GPU packs what
// others receive, NCCL moves it, and the GPU combines terms in the order listed, so with the same
// bits as threads. NCCL's own collectives are used for all-gathers that a plan marks as native, and
// for reduce-scatters that it marks as native and whose sums may be made in any order; their sums
// have other bits. Everything is launched on a separate stream with priority over other work,
// behind what the device had launched when the exchange began. Later work of the device waits for
// it. So an exchange runs concurrently with what was launched between its two halves.
//
// A group of ranks gets a communicator when it first exchanges something, and keeps it until the
// world ends. Communicators are thus made in the order of the exchanges, which is the same on all
// ranks. The communicator's id is sent in the words of exchange_carrier.h. No call of NCCL blocks.
// A thread (nccl_watch.h) aborts all communicators when the world has failed, and fails the world
// if NCCL reports an error or does not end within the world's time-out.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_NCCL_CARRIER_H_
#define DTENSOR_RUNTIME_COMM_NCCL_NCCL_CARRIER_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/messages/exchange_carrier.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

struct ncclComm;  // ncclComm_t is a pointer to it

namespace DTENSOR_EXPORT dtensor {

struct NcclOptions {
  // The most that a rank receives in one round, including all terms; the same on all ranks. 0: 64
  // MiB divided by the number of ranks in the world.
  int64_t round_bytes = 0;
  // A communicator of the program's, of all ranks of the world in their order; it is used for the
  // group of all ranks. It may still be being created, which is waited for. It must outlive the
  // world, and nobody else may use it meanwhile. When the world fails it is revoked
  // (ncclCommRevoke), and remains for the program to destroy, once ncclCommGetAsyncError returns
  // ncclSuccess and no longer ncclInProgress. If NCCL reports an error of it, or if what is in
  // progress on it does not end within 0.2 s, it cannot be revoked and is aborted (ncclCommAbort):
  // the program must then neither use nor destroy it.
  ncclComm* comm = nullptr;
  // Set to true before that abort. When the world is gone, the program checks it before its own
  // ncclCommGetAsyncError. May be null.
  std::shared_ptr<std::atomic<bool>> comm_is_gone = nullptr;
};

// For a rank's thread. `device`, which is a GPU's, and `world` outlive it. Errors: kInvalidArgument
// for a communicator of another rank, size or GPU; kFailedPrecondition if NCCL_COMM_BLOCKING=1
// makes calls of NCCL block; kUnavailable if the library was built without --config=cuda.
absl::StatusOr<std::unique_ptr<ExchangeCarrier>> MakeNcclCarrier(int rank, int size, Device& device,
                                                                 WorldState& world,
                                                                 const NcclOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NCCL_CARRIER_H_
