#include "dtensor/runtime/comm/local/rank_threads.h"

#include <utility>

namespace dtensor {

void RankThreads::Add(std::function<void()> first) {
  threads_.reserve(threads_.size() + 1);
  const int number = size();
  threads_.emplace_back([this, number, first = std::move(first)] {
    first();
    Work(number);
  });
}

void RankThreads::Start(std::function<void(int)> run) {
  {
    std::lock_guard lock(mutex_);
    run_ = std::move(run);
    ++starts_;
  }
  changed_.notify_all();
}

void RankThreads::Stop() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  stops_ = false;
}

void RankThreads::Work(int number) {
  uint64_t done = 0;
  while (true) {
    std::function<void(int)> run;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stops_ || starts_ != done; });
      if (starts_ == done) return;  // what was started runs before the thread stops
      done = starts_;
      run = run_;
    }
    run(number);
  }
}

}  // namespace dtensor
