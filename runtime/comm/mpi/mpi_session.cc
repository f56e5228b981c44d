#include "dtensor/runtime/comm/mpi/mpi_session.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/mpi/call_watch.h"
#include "dtensor/runtime/core/no_throw.h"
#include "dtensor/runtime/core/quiet_thread.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

sigset_t OnlySigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

// One for this process, and never destroyed: its thread may be in MPI_Init when the process exits.
class Session {
 public:
  static Session& Of() {
    static Session& session = *new Session;
    return session;
  }

  absl::Status Start(const MpiStop& stop) {
    std::unique_lock lock(mutex_);
    if (state_ == State::kNone) {
      DT_RETURN_IF_ERROR(NoThrow([this] {
        QuietThread([this] { Run(); }).detach();
        return absl::OkStatus();
      }));
      state_ = State::kStarting;
    }
    while (state_ == State::kStarting) {
      if (changed_.wait_for(lock, microseconds(500)) != std::cv_status::timeout) continue;
      const absl::Status given_up = stop();
      failed_ |= !given_up.ok();
      DT_RETURN_IF_ERROR(given_up);
    }
    return code_ == MPI_SUCCESS ? absl::OkStatus() : MpiError("MPI_Init_thread", code_);
  }

  bool is_ours() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kOn;
  }
  bool is_spoiled() {
    const std::lock_guard lock(mutex_);
    return spoiled_;
  }
  void BeginWorld() {
    const std::lock_guard lock(mutex_);
    ++worlds_;
  }
  void EndWorld(MpiEnd end) {
    const std::lock_guard lock(mutex_);
    --worlds_;
    failed_ |= end != MpiEnd::kClean;
    spoiled_ |= end == MpiEnd::kFailedUnderWay;
  }

 private:
  enum class State { kNone, kStarting, kOn, kEnding, kOver };

  // Called by the thread that initialized MPI, since the standard requires that one to finalize it.
  // It takes no signals, SIGPIPE included, nor do MPI's own threads, which it creates.
  void Run() {
    int provided = 0;
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
    std::unique_lock lock(mutex_);
    code_ = code;
    std::atexit([] { Of().Finalize(); });
    state_ = State::kOn;
    changed_.notify_all();
    changed_.wait(lock, [this] { return state_ == State::kEnding; });
    lock.unlock();
    if (MpiIsRunning()) MPI_Finalize();
    lock.lock();
    state_ = State::kOver;
    changed_.notify_all();
  }

  void Finalize() {
    std::unique_lock lock(mutex_);
    if (worlds_ > 0 || failed_ || code_ != MPI_SUCCESS) return;
    state_ = State::kEnding;
    changed_.notify_all();
    changed_.wait(lock, [this] { return state_ == State::kOver; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kNone;
  int code_ = MPI_SUCCESS;
  int worlds_ = 0;
  bool failed_ = false, spoiled_ = false;
};

// Errors: kFailedPrecondition if MPI was started for another thread alone.
absl::Status CheckThread() {
  int level = MPI_THREAD_SINGLE, is_main = 0;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&is_main);
  if (level >= MPI_THREAD_SERIALIZED || is_main != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "JoinWorld: MPI takes calls from the thread alone that initialized it; call JoinWorld there, "
      "or initialize by MPI_Init_thread with MPI_THREAD_SERIALIZED");
}

// A duplicate that was requested and did not come in time. MPI may still write to it.
struct PendingDuplicate {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
};

// The attribute key under which a communicator has its PendingDuplicate. Duplicates do not inherit
// it.
int PendingKey() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &made, nullptr);
    return made;
  }();
  return key;
}

// Waits until `request` is done; starts it if there is none.
absl::Status StartAndTest(const char* call, MpiStart start, const MpiStop& stop,
                          MPI_Request& request) {
  CallWatch watch(stop, {.who = "joining the world", .polls = true});
  const auto run = [&](const char* name, MpiStart function) {
    const SigpipeGuard guard;
    return watch.Call(name, [&] { return function(&request); });
  };
  if (request == MPI_REQUEST_NULL) {
    if (const int code = run(call, start); code != MPI_SUCCESS) return MpiError(call, code);
  }
  const Clock::time_point begin = Clock::now();
  while (true) {
    int done = 0;
    const int code = run("MPI_Test", [&](MPI_Request* tested) {
      return MPI_Test(tested, &done, MPI_STATUS_IGNORE);
    });
    if (code != MPI_SUCCESS) return MpiError("MPI_Test", code);
    if (done != 0) return absl::OkStatus();
    DT_RETURN_IF_ERROR(stop());
    PauseBetweenLooks(Clock::now() - begin, std::chrono::milliseconds(1));
  }
}

}  // namespace

absl::Status StartMpi(const MpiStop& stop) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return absl::FailedPreconditionError(
        "JoinWorld: MPI has been finalized, and cannot be started again in this process");
  }
  if (Session::Of().is_spoiled()) {
    return absl::FailedPreconditionError(
        "JoinWorld: a world of this process failed while MPI moved its messages; start the "
        "processes anew, or, where no communicator is given, set DTENSOR_TRANSPORT=tcp");
  }
  if (initialized == 0) DT_RETURN_IF_ERROR(Session::Of().Start(stop));
  return CheckThread();
}

bool MpiIsRunning() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

bool MpiIsOurs() { return Session::Of().is_ours(); }

absl::Status AwaitMpi(const char* call, MpiStart start, const MpiStop& stop) {
  MPI_Request request = MPI_REQUEST_NULL;
  return NoThrow([&] { return StartAndTest(call, start, stop, request); });
}

absl::StatusOr<MPI_Comm> DuplicateComm(MPI_Comm comm, const MpiStop& stop) {
  PendingDuplicate* pending = nullptr;
  int is_pending = 0;
  MPI_Comm_get_attr(comm, PendingKey(), &pending, &is_pending);
  if (is_pending == 0) pending = new PendingDuplicate;
  const auto start = [&](MPI_Request* request) {
    return MPI_Comm_idup(comm, &pending->made, request);
  };
  const absl::Status status =
      NoThrow([&] { return StartAndTest("MPI_Comm_idup", start, stop, pending->request); });
  if (!status.ok()) {
    MPI_Comm_set_attr(comm, PendingKey(), pending);
    return status;
  }
  const MPI_Comm duplicate = pending->made;
  if (is_pending != 0) MPI_Comm_delete_attr(comm, PendingKey());
  delete pending;
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  return duplicate;
}

absl::Status MpiError(absl::string_view call, int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::UnavailableError(absl::StrCat(call, ": ", absl::string_view(text, length)));
}

void BeginMpiWorld() { Session::Of().BeginWorld(); }
void EndMpiWorld(MpiEnd end) { Session::Of().EndWorld(end); }

SigpipeGuard::SigpipeGuard() {
  const sigset_t set = OnlySigpipe();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  was_blocked_ = sigismember(&before, SIGPIPE) == 1;
}

SigpipeGuard::~SigpipeGuard() {
  if (was_blocked_) return;
  const sigset_t set = OnlySigpipe();
  const timespec at_once = {0, 0};
  while (sigtimedwait(&set, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void PauseBetweenLooks(nanoseconds waited, nanoseconds most) {
  if (waited < microseconds(50)) return;
  const nanoseconds pause = std::min<nanoseconds>({waited / 8, microseconds(500), most});
  const timespec time = {0, static_cast<long>(pause.count())};
  nanosleep(&time, nullptr);
}

}  // namespace dtensor
