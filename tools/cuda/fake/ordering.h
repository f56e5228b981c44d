// How the fakes wait, and what ThreadSanitizer is told of it.
//
// Sources that include this are compiled without TSan's instrumentation, and lock with the
// compiler's builtins alone: so TSan sees the orders that CUDA promises, from Release to Acquire,
// and none that the fakes' own locks happen to make. Without TSan both do nothing.
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

// What came before Release(x) comes before what follows Acquire(x), if that is called later.
inline void Release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}
inline void Acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}

// nanosleep is a system call that TSan takes no order from.
inline void SleepMicroseconds(long microseconds) {
  const timespec time = {0, microseconds * 1000};
  nanosleep(&time, nullptr);
}

// Sleeps while *word is `value`, or less long; wakes whoever sleeps there, if it is there still.
// System calls too: many streams wait at once, and would take a core by asking.
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

// A point in a stream's work: opened once, by the stream. Held by the events and operations that
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
