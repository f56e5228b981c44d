// How long to spin and to yield before sleeping. Spinning answers soonest, and takes the core from
// the rank that is waited for where there are more ranks than cores.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_SPINNING_H_
#define DTENSOR_RUNTIME_COMM_PULLS_SPINNING_H_

#include <thread>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class Spinning {
 public:
  // Of that many ranks on this host.
  explicit Spinning(int ranks)
      : crowded_(ranks > static_cast<int>(std::thread::hardware_concurrency())) {}

  // Calls `over` until it returns true, between a pause and the next one. False: it is time to
  // sleep.
  template <typename Over>
  bool Until(Over over) const {
    const int spins = crowded_ ? 0 : 4000, yields = crowded_ ? 20 : 1000;
    for (int turn = 0; turn < spins + yields; ++turn) {
      if (over()) return true;
      if (turn >= spins) {
        std::this_thread::yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
    return false;
  }

 private:
  const bool crowded_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PULLS_SPINNING_H_
