// How long to spin and to yield before sleeping. Spinning reacts fastest, but if there are more
// ranks than cores, it takes the core from the rank that is waited for.
#ifndef DTENSOR_RUNTIME_COMM_PULLS_SPINNING_H_
#define DTENSOR_RUNTIME_COMM_PULLS_SPINNING_H_

#include <thread>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class Spinning {
 public:
  // `ranks`: how many ranks this host has.
  explicit Spinning(int ranks)
      : crowded_(ranks > static_cast<int>(std::thread::hardware_concurrency())) {}

  // Calls `over` repeatedly, with pauses, until it returns true. Returns false when it is time to
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
