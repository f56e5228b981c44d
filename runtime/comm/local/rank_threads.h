// RankThreads: one thread for each rank, which run one function after the other.
#ifndef DTENSOR_RUNTIME_COMM_LOCAL_RANK_THREADS_H_
#define DTENSOR_RUNTIME_COMM_LOCAL_RANK_THREADS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class RankThreads {
 public:
  ~RankThreads() { Stop(); }

  int size() const { return static_cast<int>(threads_.size()); }
  // Adds a thread, which first runs `first`. Throws what std::thread throws.
  void Add(std::function<void()> first);
  // Lets each thread call run(its number), and does not wait. Requires: each has returned from its
  // previous call, except for code that touches neither `run` nor what belongs to it.
  void Start(std::function<void(int)> run);
  void Stop();  // waits until they have returned and ended

 private:
  void Work(int number);

  std::mutex mutex_;  // of the three below
  std::condition_variable changed_;
  uint64_t starts_ = 0;
  bool stops_ = false;
  std::function<void(int)> run_;
  std::vector<std::thread> threads_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_LOCAL_RANK_THREADS_H_
