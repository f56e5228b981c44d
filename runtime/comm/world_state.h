// WorldState: what a rank knows of the others, apart from what they send.
#ifndef DTENSOR_RUNTIME_COMM_WORLD_STATE_H_
#define DTENSOR_RUNTIME_COMM_WORLD_STATE_H_

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Thread-safe.
class WorldState {
 public:
  virtual ~WorldState() = default;
  // Marks the world as failed by `rank`, unless it has failed already. Returns the world's failure,
  // "rank R: reason". It is the same on all ranks, unless rank 0, which decides, does not answer.
  // Requires: `reason` is an error.
  virtual absl::Status Fail(int rank, const absl::Status& reason) = 0;
  virtual absl::Status failure() const = 0;  // OK while the world works
  virtual bool failed() const = 0;           // !failure().ok(), but faster
  // `told` is called, by any thread, once the world has failed, or immediately if it has failed
  // already. It must call nothing of this object. Null: nothing is called. Once this function has
  // returned, the function that was set before is not called any more.
  virtual void TellOfFailure(std::function<void()> told) = 0;
  // What `rank` returned, if it has left.
  virtual std::optional<absl::Status> returned(int rank) const = 0;
  virtual double timeout_seconds() const = 0;  // of a rank's silence
};

// Called by a rank that has seen another rank do what only a failure can explain. Waits some
// seconds for the world's failure and returns it, or OK if none comes.
absl::Status AwaitFailure(const WorldState& world);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_WORLD_STATE_H_
