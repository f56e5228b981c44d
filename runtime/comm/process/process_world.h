// ProcessWorld: this process as one rank of a world of processes.
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/message_communicator.h"
#include "dtensor/runtime/comm/process/control_plane.h"
#include "dtensor/runtime/comm/process/launch.h"
#include "dtensor/runtime/comm/process/tcp_transport.h"
#include "dtensor/runtime/device/device.h"

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
  Communicator& communicator() { return *communicator_; }
  Device& device() { return *device_; }

  // This rank's program ended with `status`: finishes what it has begun, and waits for the others'
  // programs to end, so that none is missed. Later calls change nothing. Returns the world's
  // failure if it failed, else `status`, prefixed "rank R: ".
  absl::Status Leave(absl::Status status);

 private:
  explicit ProcessWorld(const LaunchedRank& rank) : rank_(rank) {}
  absl::Status Connect();

  const LaunchedRank rank_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<MessageCommunicator> communicator_;
  bool left_ = false;
  absl::Status result_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_PROCESS_WORLD_H_
