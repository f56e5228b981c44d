// SlowTestTime: how long a slow suite of random cases goes on: as many seconds as the environment's
// DTENSOR_SECONDS says, or three minutes.
#ifndef DTENSOR_RUNTIME_TESTING_SLOW_TEST_TIME_H_
#define DTENSOR_RUNTIME_TESTING_SLOW_TEST_TIME_H_

#include <chrono>
#include <cstdlib>

namespace dtensor {

class SlowTestTime {
 public:
  SlowTestTime() : end_(Clock::now() + Given()) {}
  bool Left() const { return Clock::now() < end_; }

 private:
  using Clock = std::chrono::steady_clock;
  static std::chrono::seconds Given() {
    const char* const given = std::getenv("DTENSOR_SECONDS");
    const int seconds = given != nullptr ? std::atoi(given) : 0;
    return std::chrono::seconds(seconds > 0 ? seconds : 180);
  }

  Clock::time_point end_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_SLOW_TEST_TIME_H_
