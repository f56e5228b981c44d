#include "dtensor/runtime/comm/nccl/nccl_group.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/quiet_thread.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

// How long an abort waits for a call of the library that does not return.
constexpr std::chrono::seconds kCallReturns(1);
// How long it waits for what is in progress, and then for a revocation.
constexpr std::chrono::milliseconds kQuiet(200), kRevoked(700);

absl::Status Aborted() { return absl::AbortedError("its NCCL communicator was aborted"); }

// Pauses between two polls for something that has not come for `waited`.
void Pause(Clock::duration waited) {
  using std::chrono::microseconds;
  const auto some = std::chrono::duration_cast<microseconds>(waited / 8);
  if (waited < microseconds(50)) return;
  std::this_thread::sleep_for(std::min(std::max(some, microseconds(20)), microseconds(1000)));
}

// Returns without the lock if it is not free within `longest`. A std::timed_mutex would wait by
// pthread_mutex_clocklock, which g++ 12's TSan does not know.
std::unique_lock<std::mutex> LockWithin(std::mutex& mutex, Clock::duration longest) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (const auto begin = Clock::now(); !lock && Clock::now() - begin < longest;) {
    Pause(Clock::now() - begin);
    static_cast<void>(lock.try_lock());
  }
  return lock;
}

}  // namespace

struct NcclGroup::State {
  ncclComm_t comm = nullptr;
  int gpu = 0;
  bool is_callers = false;
  std::mutex mutex;  // held for each call to NCCL, except by an abort that waited long enough
  std::atomic<bool> over = false, is_aborted = false;
  std::shared_ptr<std::atomic<bool>> is_gone;  // checked by the caller; or null

  // Locks the mutex. An abort that hangs keeps it, so every wait for it can be stopped. Errors:
  // stop's; kAborted if the communicator is over.
  absl::StatusOr<std::unique_lock<std::mutex>> Lock(const NcclStop& stop) {
    for (const Clock::time_point start = Clock::now();; Pause(Clock::now() - start)) {
      std::unique_lock lock(mutex, std::try_to_lock);
      if (lock && !over) return lock;
      if (lock) lock.unlock();
      DT_RETURN_IF_ERROR(stop());
      if (over) return Aborted();
    }
  }
  // Requires: the mutex is held, and not over.
  absl::Status Error(ncclResult_t result) const {
    const char* const text = ncclGetLastError(comm);
    const std::string more = text == nullptr || *text == '\0' ? "" : absl::StrCat(": ", text);
    const std::string message = absl::StrCat("NCCL: ", ncclGetErrorString(result), more);
    return result == ncclInvalidUsage || result == ncclInvalidArgument
               ? absl::InvalidArgumentError(message)
               : absl::UnavailableError(message);
  }
  void Abort() {
    over = true;
    const std::unique_lock lock = LockWithin(mutex, kCallReturns);
    // This may be a new thread, for which NCCL would later restore the GPU that it found: GPU 0.
    cudaSetDevice(gpu);
    if (is_callers && lock && IsQuiet() && Revoke()) return;
    if (is_gone != nullptr) *is_gone = true;
    ncclCommAbort(comm);
    is_aborted = true;
  }
  // Whether nothing is in progress, and nothing failed. NCCL 2.28 to 2.30 free a group when its
  // communicator is revoked, and again when they are asked for its result, unless they had reported
  // the result before. Requires: the mutex is held.
  bool IsQuiet() const {
    ncclResult_t result = ncclInternalError;
    for (const Clock::time_point until = Clock::now() + kQuiet;;) {
      if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) return false;
      if (result != ncclInProgress || Clock::now() > until) return result == ncclSuccess;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Waits until NCCL has finished the revocation, since its owner destroys the communicator next;
  // or until the time is over, after which the owner polls. Returns false if it cannot be revoked.
  bool Revoke() {
    ncclResult_t result = ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT);
    const Clock::time_point until = Clock::now() + kRevoked;
    while (result == ncclInProgress && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
      if (asked != ncclSuccess) result = asked;
    }
    is_aborted = result == ncclSuccess;
    return is_aborted || result == ncclInProgress;
  }
};

absl::Status CheckNcclEnvironment() {
  const char* const blocks = std::getenv("NCCL_COMM_BLOCKING");
  if (blocks == nullptr || std::strtol(blocks, nullptr, 0) != 1) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "NCCL_COMM_BLOCKING=1, in the environment or in nccl.conf, makes NCCL wait for good for a "
      "rank that died; unset it, or set it to 0");
}

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  DT_RETURN_IF_ERROR(CheckNcclEnvironment());  // which includes nccl.conf from now on
  if (result == ncclSuccess) return std::string(id.internal, sizeof(id.internal));
  return absl::UnavailableError(
      absl::StrCat("NCCL: ncclGetUniqueId: ", ncclGetErrorString(result)));
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Connect(absl::string_view id, int size,
                                                              int rank, const NcclStop& stop) {
  ncclUniqueId name;
  if (id.size() != sizeof(name.internal)) {
    return InvalidArgument({"NCCL: the id of a group has ", absl::StrCat(id.size()),
                            " bytes; start the same build of the program for all ranks"});
  }
  std::memcpy(name.internal, id.data(), id.size());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto state = std::make_shared<State>();
  if (cudaGetDevice(&state->gpu) != cudaSuccess) cudaGetLastError();
  const ncclResult_t begun = ncclCommInitRankConfig(&state->comm, size, name, rank, &config);
  // There may be a communicator nevertheless, which has to be aborted, and can tell more.
  if (state->comm == nullptr) return state->Error(begun);
  auto group = std::unique_ptr<NcclGroup>(new NcclGroup(state));
  if (const absl::Status status = group->Await(stop); !status.ok()) {
    AbortAll({group.get()}, Clock::now() + 2 * kCallReturns);
    const bool is_shared = absl::StrContains(status.message(), "Duplicate GPU");
    return !is_shared ? status
                      : InvalidArgument({status.message(),
                                         "; NCCL wants a GPU for each rank: start no more ranks "
                                         "on a host than it has GPUs"});
  }
  return group;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Adopt(ncclComm_t comm, int size, int rank,
                                                            int gpu, const NcclStop& stop,
                                                            Flag is_gone) {
  const auto state = std::make_shared<State>();
  state->comm = comm;
  state->gpu = gpu;
  state->is_callers = true;
  state->is_gone = std::move(is_gone);
  auto group = std::unique_ptr<NcclGroup>(new NcclGroup(state));
  DT_RETURN_IF_ERROR(group->Await(stop));
  int its[3] = {-1, -1, -1};
  const bool known = ncclCommCount(comm, &its[0]) == ncclSuccess &&
                     ncclCommUserRank(comm, &its[1]) == ncclSuccess &&
                     ncclCommCuDevice(comm, &its[2]) == ncclSuccess;
  if (known && its[0] == size && its[1] == rank && its[2] == gpu) return group;
  if (!known) return InvalidArgument({"the NCCL communicator that is given does not say its rank"});
  return absl::InvalidArgumentError(
      absl::StrCat("the NCCL communicator that is given is of rank ", its[1], " of ", its[0],
                   " on GPU ", its[2], ", and this is rank ", rank, " of ", size, " on GPU ", gpu));
}

NcclGroup::~NcclGroup() = default;

absl::Status NcclGroup::Await(const NcclStop& stop) {
  const Clock::time_point start = Clock::now();
  while (true) {
    {
      DT_ASSIGN_OR_RETURN(const std::unique_lock<std::mutex> lock, state_->Lock(stop));
      ncclResult_t result = ncclInternalError;
      ncclCommGetAsyncError(state_->comm, &result);
      if (result == ncclSuccess) return absl::OkStatus();
      if (result != ncclInProgress) return state_->Error(result);
    }
    DT_RETURN_IF_ERROR(stop());
    Pause(Clock::now() - start);
  }
}

absl::Status NcclGroup::Call(Calls calls, const NcclStop& stop) {
  DT_RETURN_IF_ERROR(stop());
  DT_ASSIGN_OR_RETURN(std::unique_lock<std::mutex> lock, state_->Lock(stop));
  ncclGroupStart();
  const ncclResult_t called = calls(state_->comm);
  const ncclResult_t ended = ncclGroupEnd();
  absl::Status status;
  for (const ncclResult_t result : {called, ended}) {
    if (!status.ok() || result == ncclSuccess || result == ncclInProgress) continue;
    status = state_->Error(result);
  }
  lock.unlock();
  if (status.ok()) status = Await(stop);
  if (!status.ok()) AbortAll({this}, Clock::now() + 2 * kCallReturns);
  return status;
}

absl::Status NcclGroup::failure() const {
  const std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (!lock.owns_lock() || state_->over) return absl::OkStatus();  // the lock's holder checks it
  ncclResult_t result = ncclSuccess;
  ncclCommGetAsyncError(state_->comm, &result);
  return result == ncclSuccess || result == ncclInProgress ? absl::OkStatus()
                                                           : state_->Error(result);
}

absl::Status NcclGroup::End(const NcclStop& stop) {
  if (state_->over) return absl::OkStatus();
  const absl::Status status = Finish(stop);
  if (!status.ok()) AbortAll({this}, Clock::now() + 2 * kCallReturns);
  return status;
}

absl::Status NcclGroup::Finish(const NcclStop& stop) {
  if (!state_->is_callers) {
    {
      DT_ASSIGN_OR_RETURN(const std::unique_lock<std::mutex> lock, state_->Lock(stop));
      const ncclResult_t begun = ncclCommFinalize(state_->comm);
      if (begun != ncclSuccess && begun != ncclInProgress) return state_->Error(begun);
    }
    DT_RETURN_IF_ERROR(Await(stop));
  }
  DT_ASSIGN_OR_RETURN(const std::unique_lock<std::mutex> lock, state_->Lock(stop));
  if (state_->over.exchange(true)) return Aborted();
  is_ended_ = true;
  if (!state_->is_callers) ncclCommDestroy(state_->comm);
  return absl::OkStatus();
}

bool NcclGroup::AbortAll(const std::vector<NcclGroup*>& groups, Deadline deadline) {
  std::vector<std::shared_ptr<State>> aborting;
  for (NcclGroup* const group : groups) {
    if (!group->is_ended_) aborting.push_back(group->state_);
  }
  while (true) {
    for (const auto& state : aborting) BeginAbort(state);  // again if no thread could be created
    const bool all_are = std::all_of(aborting.begin(), aborting.end(),
                                     [](const auto& state) { return state->is_aborted.load(); });
    if (all_are || Clock::now() >= deadline) return all_are;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void NcclGroup::BeginAbort(const std::shared_ptr<State>& state) {
  if (state->over.exchange(true)) return;
  const absl::Status started = NoThrow([&] {
    QuietThread([state] { state->Abort(); }).detach();
    return absl::OkStatus();
  });
  if (!started.ok()) state->over = false;
}

}  // namespace dtensor
