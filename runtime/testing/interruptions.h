// A program with an interval timer, whose handler does not restart what it interrupts (SA_RESTART):
// calls that wait return EINTR, every millisecond.
#ifndef DTENSOR_RUNTIME_TESTING_INTERRUPTIONS_H_
#define DTENSOR_RUNTIME_TESTING_INTERRUPTIONS_H_

#include <signal.h>
#include <sys/time.h>

#include <atomic>
#include <thread>

namespace dtensor {

// While it lives; one at a time.
class Interruptions {
 public:
  Interruptions() {
    count_ = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { ++count_; };
    sigaction(SIGALRM, &action, &before_);
    SetTimer(1000);
  }
  ~Interruptions() {
    SetTimer(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

  // For a thread beside the one that is interrupted: waits for some more, without having any.
  static void AwaitSome() {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
    const int begin = count_;
    while (count_ < begin + 20) std::this_thread::yield();
  }

 private:
  static void SetTimer(int microseconds) {
    const itimerval every = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }

  inline static std::atomic<int> count_ = 0;
  struct sigaction before_ = {};
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_INTERRUPTIONS_H_
