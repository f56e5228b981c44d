// What the tests of layers on one axis "tp" share: a world with its mesh, and what it has moved.
#ifndef DTENSOR_TESTS_PLANS_ON_WORLD_H_
#define DTENSOR_TESTS_PLANS_ON_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"

namespace dtensor {

// Runs `program` on ranks that are threads, with the mesh "tp" of all of them.
inline absl::Status OnWorld(
    int ranks, const std::function<absl::Status(Context&, const DeviceMesh&)>& program) {
  return RunRanks(ranks, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(absl::StrCat("tp=", ranks)));
    return program(context, mesh);
  });
}

// How often the rank has taken part in each kind of collective since the last call, or a
// ResetTraffic.
inline std::map<std::string, int64_t> TakeCollectives(Context& context) {
  std::map<std::string, int64_t> counts;
  for (const auto& [key, traffic] : context.communicator().traffic()) {
    counts[std::string(ToString(key.second))] += traffic.calls;
  }
  context.communicator().ResetTraffic();
  return counts;
}

}  // namespace dtensor

#endif  // DTENSOR_TESTS_PLANS_ON_WORLD_H_
