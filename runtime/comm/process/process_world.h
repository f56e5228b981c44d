// ProcessWorld: this process as one rank of a world of processes. Ranks of one host read each
// other's memory, as threads do; others send messages.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/comm/process/control_plane.h"
#include "dtensor/runtime/comm/process/host_card.h"
#include "dtensor/runtime/comm/process/host_communicator.h"
#include "dtensor/runtime/comm/process/host_memory.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/device/cpu/shared_arena.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/net/socket.h"

namespace dtensor {

class ProcessWorld {
 public:
  // Collective: every rank's process calls it. Errors: kInvalidArgument for a world that other
  // hosts can reach and that has no secret; as ControlPlane::Join and TcpTransport::Connect.
  static absl::StatusOr<std::unique_ptr<ProcessWorld>> Join(const LaunchedRank& rank);
  // Leaves with OK, unless it has left.
  ~ProcessWorld();

  int rank() const { return rank_.rank; }
  int size() const { return rank_.size; }
  Communicator& communicator();
  Device& device() { return *device_; }

  // This rank's program ended with `status`: finishes what it has begun, and waits for the others'
  // programs to end, so that none is missed. Later calls change nothing. Returns the world's
  // failure if it failed (`status`, if that is the failure and says where it was met), else
  // `status`, prefixed "rank R: ".
  absl::Status Leave(absl::Status status);

 private:
  explicit ProcessWorld(const LaunchedRank& rank) : rank_(rank) {}
  absl::Status Meet();
  absl::Status Connect();
  absl::Status ConnectHosts();

  const LaunchedRank rank_;
  Socket listener_;                                               // until all are connected
  absl::StatusOr<std::shared_ptr<SharedArena>> arena_ = nullptr;  // null: shares no memory
  std::vector<HostCard> cards_;                                   // of all ranks
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<HostMemory> memory_;  // null: no other rank of this host shares any
  // Null where all ranks share memory.
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<MessageCommunicator> messages_;
  std::unique_ptr<HostCommunicator> both_;  // null where one of the two is enough
  bool is_connected_ = false, left_ = false;
  absl::Status result_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
