#include "dtensor/runtime/core/quiet_thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace dtensor {
namespace {

// Blocks signals in this thread for as long as the object lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
      sigdelset(&blocked, own);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

// A thread inherits its creator's mask, so there is no moment in which it could take a signal.
std::thread QuietThread(std::function<void()> run) {
  const BlockedSignals blocked;
  return std::thread(std::move(run));
}

}  // namespace dtensor
