// DeferredQueue: functions that any thread defers until a device's work is done (Device::Defer), in
// order.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_DEFERRED_QUEUE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_DEFERRED_QUEUE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace dtensor {

// Any thread may use it. Functions run on the thread that calls Run() or RunBefore(), one after the
// other and without the lock, so they may push again.
class DeferredQueue {
 public:
  // `is_done` returns whether the work before `fn` is done. Null: unknown, and only RunBefore()
  // runs `fn`.
  void Push(std::function<bool()> is_done, std::function<void()> fn) {
    std::lock_guard lock(mutex_);
    entries_.push_back({std::move(is_done), std::move(fn)});
  }

  // A point after all that was pushed so far.
  uint64_t End() {
    std::lock_guard lock(mutex_);
    return begun_ + entries_.size();
  }
  bool empty() {
    std::lock_guard lock(mutex_);
    return entries_.empty();
  }

  // Drops all functions without running or destroying them.
  void Leak() {
    std::lock_guard lock(mutex_);
    new std::deque<Entry>(std::move(entries_));
    entries_.clear();
  }

  // Runs functions from the front of the queue, as long as the work before them is done.
  void Run() { RunBefore(0); }
  // As Run, but all functions before `end` count as done. For when the device's work is done that
  // it had when End() was called.
  void RunBefore(uint64_t end) {
    while (std::function<void()> fn = Next(end)) fn();
  }

 private:
  struct Entry {
    std::function<bool()> is_done;
    std::function<void()> fn;
  };

  std::function<void()> Next(uint64_t end) {
    std::lock_guard lock(mutex_);
    if (entries_.empty()) return nullptr;
    Entry& first = entries_.front();
    if (begun_ >= end && (first.is_done == nullptr || !first.is_done())) return nullptr;
    std::function<void()> fn = std::move(first.fn);
    entries_.pop_front();
    ++begun_;
    return fn;
  }

  std::mutex mutex_;
  uint64_t begun_ = 0;  // the number of the first entry
  std::deque<Entry> entries_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_DEFERRED_QUEUE_H_
