// ProcessWorld: this process as one rank of a world of processes. Ranks of one host read each
// other's memory, as threads do; others send messages. Ranks on GPUs, one on each, exchange by
// NCCL, and use messages only to say what they are about to do.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/exchange_carrier.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/comm/messages/message_transport.h"
#include "dtensor/runtime/comm/process/control_plane.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/comm/process/host_communicator.h"
#include "dtensor/runtime/comm/process/host_memory.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/net/socket.h"

namespace DTENSOR_EXPORT dtensor {

// What a rank brings to its world in addition to what launch.h reads, or instead of TCP.
struct RankLinks {
  Socket listener;  // rank 0's, which already listens at its address
  // Makes the transport of messages, when all ranks have joined; `world` outlives it. Null: TCP
  // between each pair of ranks. All ranks must have the same `name`, or are refused.
  std::function<absl::StatusOr<std::unique_ptr<MessageTransport>>(WorldState& world)> transport;
  std::string name;
  // Called with the world's failure, or OK, after this rank has left, if it ever joined. The
  // transport has been destroyed by then.
  std::function<void(const absl::Status& failure)> ended;
};

class ProcessWorld {
 public:
  // Collective: every rank's process calls it. Errors: kInvalidArgument without an address, with
  // the remedy, for a world that other hosts can reach and that has no secret, for ranks with
  // different transports, if two ranks have one GPU, or only some ranks have one; kUnavailable for
  // a GPU that does not exist, or a program without CUDA; as ControlPlane::Join,
  // TcpTransport::Connect and `links.transport`.
  static absl::StatusOr<std::unique_ptr<ProcessWorld>> Join(const LaunchedRank& rank,
                                                            RankLinks links = {});
  // Leaves with OK, unless Leave was called.
  ~ProcessWorld();

  int rank() const { return rank_.rank; }
  int size() const { return rank_.size; }
  Communicator& communicator();
  Device& device() { return *device_; }

  // Ends this rank's program with `status`: finishes the exchanges that it has begun, and waits for
  // the others' programs to end, so that no rank goes missing from theirs. Later calls change
  // nothing. Returns the world's failure if it failed (`status` itself, if that is the failure and
  // says where it was met), else `status`, prefixed "rank R: ".
  absl::Status Leave(absl::Status status);

  bool has_tensors() const { return device_->tensors() > 0; }
  void ReleaseFreeMemory() { device_->set_kept_bytes(0); }

 private:
  ProcessWorld(const LaunchedRank& rank, RankLinks links) : rank_(rank), links_(std::move(links)) {}
  absl::Status Meet();
  absl::StatusOr<int> ChooseGpu() const;
  absl::Status MakeDevice(std::shared_ptr<SharedArena> arena);
  absl::Status Connect();
  absl::Status ConnectMessages();
  absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectHosts();
  absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectByTcp();

  const LaunchedRank rank_;
  RankLinks links_;
  Socket listener_;                                               // until all are connected
  absl::StatusOr<std::shared_ptr<SharedArena>> arena_ = nullptr;  // null: shares no memory
  absl::StatusOr<int> gpu_ = -1;                                  // -1: it computes on the cpu
  std::vector<HostCard> cards_;                                   // of all ranks
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostMemory> memory_;  // null: no other rank shares memory with this one
  // Null if all ranks share memory.
  std::unique_ptr<MessageTransport> transport_;
  std::unique_ptr<ExchangeCarrier> carrier_;  // null: there are no GPUs
  std::unique_ptr<MessageCommunicator> messages_;
  std::unique_ptr<HostCommunicator> both_;  // null if one of the two is enough
  bool is_connected_ = false, left_ = false;
  absl::Status result_;
};

// Destroys `world`, or, after Leave(), keeps it if it has tensors (kept_worlds.h).
void LetGo(std::unique_ptr<ProcessWorld> world);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
