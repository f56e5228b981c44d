// How the fakes wait, and which orders ThreadSanitizer is told of.
//
// Sources that include this are compiled without TSan's instrumentation, and lock by compiler
// builtins alone. So TSan sees the orders that CUDA promises, from Release to Acquire, and none
// that happen to result from the fakes' own locks. Without TSan both do nothing.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_ORDERING_H_
#define DTENSOR_TOOLS_CUDA_FAKE_ORDERING_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

extern "C" {
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
}

namespace dtensor::fake_cuda {

// Everything before Release(x) happens before everything after Acquire(x), if that is called later.
inline void Release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}
inline void Acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}

// nanosleep is a system call from which TSan infers no order.
inline void SleepMicroseconds(long microseconds) {
  const timespec time = {0, microseconds * 1000};
  nanosleep(&time, nullptr);
}

// SleepWhile sleeps while *word is `value`, or less long. Wake wakes threads that sleep there; the
// word need not exist any more. System calls as well: many streams wait at once, and polling would
// occupy a core.
inline void SleepWhile(const int* word, int value) {
  const timespec time = {1, 0};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}
inline void Wake(const int* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

class SpinLock {
 public:
  void lock() {
    while (__atomic_exchange_n(&held_, true, __ATOMIC_ACQUIRE)) SleepMicroseconds(1);
  }
  void unlock() { __atomic_store_n(&held_, false, __ATOMIC_RELEASE); }

 private:
  bool held_ = false;
};

// A point in a stream's work, opened once, by the stream. Kept by the events and operations that
// refer to it.
class Gate {
 public:
  void Hold() { __atomic_fetch_add(&holders_, 1, __ATOMIC_RELAXED); }
  void Drop() {
    if (__atomic_sub_fetch(&holders_, 1, __ATOMIC_ACQ_REL) == 0) delete this;
  }

  void Open() {
    Release(this);
    __atomic_store_n(&open_, 1, __ATOMIC_RELEASE);
    Wake(&open_);
  }
  bool IsOpen() {
    if (__atomic_load_n(&open_, __ATOMIC_ACQUIRE) == 0) return false;
    Acquire(this);
    return true;
  }
  void Wait() {
    while (!IsOpen()) SleepWhile(&open_, 0);
  }

 private:
  ~Gate() = default;
  int holders_ = 1;
  int open_ = 0;
};

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_ORDERING_H_
