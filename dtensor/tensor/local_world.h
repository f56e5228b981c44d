// Ranks of this process that stay, for programs that have a loop, or threads, of their own.
//
//   LocalWorld    n ranks, on threads that it keeps or on the caller's
//   SingleRank()  a world of one: operators on the calling thread, with nothing around them
//
// A program whose ranks do one thing from beginning to end wants RunRanks (context.h) or, as a
// process for each rank, RunWorld and JoinWorld (join_world.h). docs/embedding.md shows these at
// work.
//
// Worlds know nothing of each other: there may be several in a process, one after the other and at
// the same time. Tensors of two of them never meet in an operator. A child that the process forks
// has none of their threads, and must end by _exit or exec.
#ifndef DTENSOR_TENSOR_LOCAL_WORLD_H_
#define DTENSOR_TENSOR_LOCAL_WORLD_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// One rank of this process, for whichever thread has it: one at a time.
class LocalRank {
 public:
  LocalRank(LocalRank&&) noexcept;
  LocalRank& operator=(LocalRank&&) noexcept;
  // Leaves, unless it has left: with OK; with an error where an exception is on its way through the
  // thread that destroys it, so that the other ranks hear of it.
  ~LocalRank();

  // There as long as this is, or as there are tensors of it.
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

// Used in one of two ways: Run, again and again, or Take, once for each rank.
//
// A world that has failed stays so (docs/errors.md): Run and Take return that failure, and a new
// world is the remedy. What was made in the old one can still be looked at. One that was moved from
// can only be destroyed or assigned to.
class LocalWorld {
 public:
  // Errors: as RunRanks.
  static absl::StatusOr<LocalWorld> Create(int n, const RunOptions& options = {},
                                           const ContextOptions& contexts = {});
  LocalWorld(LocalWorld&&) noexcept;
  LocalWorld& operator=(LocalWorld&&) noexcept;
  // Ranks that were taken stay until they leave. Tensors stay as those of RunRanks do. Writes the
  // trace, if there is one; RunOptions::report is told if that fails. Requires, as the assignment
  // does: no Run is on its way, so this is not called by fn.
  ~LocalWorld();

  int size() const;
  // Of the world; OK while it works.
  absl::Status failure() const;

  // Calls fn on each rank, on the thread (with RunOptions::executor: on any) and with the Context
  // that it had in the call before, and waits for all. Between two calls the ranks sleep, and the
  // caller may hold what they made: look at it, drop it, hand it to the next call. What fn has
  // begun, and kept or dropped, is finished (Context::FinishBegun).
  //
  // An exception that leaves fn is its rank's error. Where fn returned errors on all ranks, as a
  // refusal is, they are at the same point of the program, and the next call may go on; where it
  // did on some, the world has failed.
  //
  // Errors: those of RunRanks; kFailedPrecondition while another thread is in Run, or after Take.
  absl::Status Run(const std::function<absl::Status(Context&)>& fn);

  // A rank for a thread of the caller's. Peers that wait for a rank which nobody has taken yet wait
  // for the time-out; RunOptions::report is told nothing. Errors: kInvalidArgument for a rank that
  // the world lacks, with pin_threads or an executor; kFailedPrecondition for a rank that was taken
  // before, or after Run; the world's failure.
  absl::StatusOr<LocalRank> Take(int rank);

 private:
  struct State;
  explicit LocalWorld(std::unique_ptr<State> state);
  State& state() const;
  std::unique_ptr<State> state_;
};

// The rank of a world of one, for the calling thread or whichever it is moved to. Errors: as
// RunRanks; kInvalidArgument for pin_threads and an executor: the thread is the caller's.
absl::StatusOr<LocalRank> SingleRank(const RunOptions& options = {},
                                     const ContextOptions& contexts = {});

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_LOCAL_WORLD_H_
