// Long-lived ranks inside this process, for programs that have their own main loop or threads.
//
//   LocalWorld    n ranks, on threads that it keeps or on the caller's
//   SingleRank()  a world of one rank: operators run on the calling thread
//
// If all ranks simply run one function from beginning to end, use RunRanks (context.h) or, with a
// process for each rank, RunWorld and JoinWorld (join_world.h). docs/embedding.md has examples.
//
// A process may have several worlds, one after the other or at the same time; they are independent.
// An operator refuses tensors of two worlds. A child that the process forks has none of their
// threads, and must end by _exit or exec.
#ifndef DTENSOR_TENSOR_LOCAL_WORLD_H_
#define DTENSOR_TENSOR_LOCAL_WORLD_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// One rank of this process. Any thread may use it, but only one at a time.
class LocalRank {
 public:
  LocalRank(LocalRank&&) noexcept;
  LocalRank& operator=(LocalRank&&) noexcept;
  // Calls Leave(), unless that was called: with OK, or with an error if the thread that destroys it
  // is unwinding from an exception, so that other ranks learn of it.
  ~LocalRank();

  // Lives as long as this LocalRank or any of its tensors.
  Context& context();

  // Says that this rank's program has ended with `status`. A peer that waits for this rank, now or
  // later, gets `status`, or "it returned" if that is OK, as the world's failure. Blocks only until
  // exchanges that this rank has begun are finished. If there is a trace, writes that of all ranks
  // that have left so far. Returns the world's failure if it has failed by now; else `status`,
  // prefixed "rank R: ", if it is an error; else whether the trace could be written. Further calls
  // have no effect.
  absl::Status Leave(const absl::Status& status);

 private:
  friend class LocalWorld;
  struct State;
  explicit LocalRank(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Use it in one of two ways: call Run again and again, or Take once for each rank.
//
// A world that has failed stays failed (docs/errors.md): Run and Take return that failure. Make a
// new world then; tensors of the old one can still be read. A LocalWorld that was moved from can
// only be destroyed or assigned to.
class LocalWorld {
 public:
  // Errors: as RunRanks.
  static absl::StatusOr<LocalWorld> Create(int n, const RunOptions& options = {},
                                           const ContextOptions& contexts = {});
  LocalWorld(LocalWorld&&) noexcept;
  LocalWorld& operator=(LocalWorld&&) noexcept;
  // Ranks that were taken live until they leave. Tensors may outlive the world, as those of
  // RunRanks may. Writes the trace, if there is one, and calls RunOptions::report if that fails.
  // Requires, as assignment to it does, that no Run is in progress; so fn must not destroy its
  // world.
  ~LocalWorld();

  int size() const;
  // The world's failure; OK if it has not failed.
  absl::Status failure() const;

  // Calls fn on each rank and waits for all. A rank has the same Context in every call, and the
  // same thread unless there is a RunOptions::executor. Between two calls the ranks sleep, and the
  // caller may keep tensors that they made: read them, drop them, or pass them to the next call.
  // Communication that fn has begun, and kept or dropped, is finished before Run returns
  // (Context::FinishBegun).
  //
  // An exception that leaves fn is its rank's error. If fn returns errors on all ranks, as for a
  // refusal, all are at the same point of the program, and Run may be called again. If it returns
  // errors on only some ranks, the world has failed.
  //
  // Errors: those of RunRanks; kFailedPrecondition while another thread is in Run, or after Take.
  absl::Status Run(const std::function<absl::Status(Context&)>& fn);

  // Returns a rank for one of the caller's threads. Peers that wait for a rank which was not taken
  // yet wait until the time-out; RunOptions::report is not called. Errors: kInvalidArgument for a
  // rank that the world does not have, or with pin_threads or an executor; kFailedPrecondition for
  // a rank that was taken before, or after Run; the world's failure.
  absl::StatusOr<LocalRank> Take(int rank);

 private:
  struct State;
  explicit LocalWorld(std::unique_ptr<State> state);
  State& state() const;
  std::unique_ptr<State> state_;
};

// Returns the rank of a world of one, for the calling thread or the thread it is moved to. Errors:
// as RunRanks; kInvalidArgument for pin_threads or an executor, as the thread is the caller's.
absl::StatusOr<LocalRank> SingleRank(const RunOptions& options = {},
                                     const ContextOptions& contexts = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LOCAL_WORLD_H_
