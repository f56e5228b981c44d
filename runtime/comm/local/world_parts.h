// WorldParts: what the tensors of one world's ranks refer to. It is kept while there are any, so
// that a tensor that a program takes out of the world can still be read and dropped like any other.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_WORLD_PARTS_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_WORLD_PARTS_H_

#include <memory>
#include <vector>

#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/local/local_communicator.h"
#include "dtensor/runtime/comm/local/world.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

struct WorldParts {
  bool has_tensors() const;
  void ReleaseFreeMemory();

  std::unique_ptr<World> world;  // null: simulated
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<LocalCommunicator>> communicators;
  std::unique_ptr<Communicator> simulated;
};

// Destroys `world`, whose ranks have ended, or keeps it if it has tensors (kept_worlds.h).
void LetGo(std::unique_ptr<WorldParts> world);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_WORLD_PARTS_H_
