// Exchanges between processes that have a GPU each, by NCCL.
//
// Everything is grouped sends and receives of packed boxes: the GPU packs what others receive, NCCL
// moves it, and the GPU combines terms in the order listed, so with the bits that threads have.
// NCCL's own are all-gathers that a plan calls native, and reduce-scatters of which it says that
// sums may be made in any order: theirs are other bits. All of it is launched on a stream of its
// own, before other work, behind what the device had launched when the exchange began; the device's
// later work waits for it there. So it runs beside what was launched between the exchange's two
// halves.
//
// A group of ranks gets a communicator when it first exchanges something, which stays until the
// world ends: in the order of the exchanges, so in one order on all ranks. Its id goes with the
// words that ranks tell each other (exchange_carrier.h). No call of NCCL blocks. A thread
// (nccl_watch.h) aborts all communicators when the world has failed, and fails it where NCCL finds
// something wrong, or does not end within the world's time-out.
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
  // Of what a rank receives in one round, terms and all; alike on all ranks. 0: 64 MiB, divided by
  // the world's ranks.
  int64_t round_bytes = 0;
  // A communicator of the program's, of all ranks of the world in their order, which is used for
  // the group of all. It may still be in the making, which is awaited. It outlives the world, and
  // is not used by others meanwhile. When the world fails it is revoked (ncclCommRevoke), and stays
  // the program's to destroy: once ncclCommGetAsyncError says ncclSuccess, and no more
  // ncclInProgress. Where NCCL reports an error of it, or what is in progress on it does not end
  // within 0.2 s, it cannot be revoked, and is aborted (ncclCommAbort): the program must not touch
  // it any more, nor destroy it.
  ncclComm* comm = nullptr;
  // Set before that. For the program to look at when the world is gone, in front of its own
  // ncclCommGetAsyncError. May be null.
  std::shared_ptr<std::atomic<bool>> comm_is_gone = nullptr;
};

// For a rank's thread; `device`, a GPU's, and `world` outlive it. Errors: kInvalidArgument for a
// communicator of another rank, size or GPU; kFailedPrecondition where NCCL_COMM_BLOCKING=1 makes
// calls of NCCL block; kUnavailable when the library was built without --config=cuda.
absl::StatusOr<std::unique_ptr<ExchangeCarrier>> MakeNcclCarrier(int rank, int size, Device& device,
                                                                 WorldState& world,
                                                                 const NcclOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NCCL_CARRIER_H_
