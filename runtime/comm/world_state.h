// WorldState: what a rank knows of the others besides what they send.
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
  // Marks the world as failed by `rank`, unless it failed before. Returns the world's failure,
  // "rank R: reason": the same on all ranks, but where rank 0, which decides, says nothing.
  // Requires: `reason` is an error.
  virtual absl::Status Fail(int rank, const absl::Status& reason) = 0;
  virtual absl::Status failure() const = 0;  // OK while the world works
  virtual bool failed() const = 0;           // the same, at once
  // `told` is called once the world has failed, at once if it has, by any thread. It must call
  // nothing of this object. Null: nobody is to be told; an earlier one is not called any more once
  // this has returned.
  virtual void TellOfFailure(std::function<void()> told) = 0;
  // What `rank` returned, if it has left.
  virtual std::optional<absl::Status> returned(int rank) const = 0;
  virtual double timeout_seconds() const = 0;  // of a rank's silence
};

// For a rank that has seen of another what only a failure can have brought about: the world's
// failure, which it awaits for some seconds; OK if none comes.
absl::Status AwaitFailure(const WorldState& world);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_WORLD_STATE_H_
