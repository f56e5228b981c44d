#include "dtensor/runtime/comm/process/world_joiner.h"

#include <atomic>

namespace dtensor {
namespace {

std::atomic<WorldJoiner> joiner_that_is_linked = nullptr;

}  // namespace

void SetWorldJoiner(WorldJoiner joiner) { joiner_that_is_linked = joiner; }
WorldJoiner world_joiner() { return joiner_that_is_linked; }

}  // namespace dtensor
