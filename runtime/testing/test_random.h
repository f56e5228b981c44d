// Random choices for tests, from a seed that is printed: the environment's DTENSOR_SEED repeats
// them.
#ifndef DTENSOR_RUNTIME_TESTING_TEST_RANDOM_H_
#define DTENSOR_RUNTIME_TESTING_TEST_RANDOM_H_

#include <cstdint>
#include <initializer_list>
#include <random>

#include "absl/types/span.h"

namespace dtensor {

// $DTENSOR_SEED, or else a new one at each call; printed.
uint64_t TestSeed();

class TestRandom {
 public:
  TestRandom() : TestRandom(TestSeed()) {}
  explicit TestRandom(uint64_t seed) : engine_(seed) {}

  int64_t In(int64_t low, int64_t high) {  // both included
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  int Below(int n) { return static_cast<int>(In(0, n - 1)); }  // in [0, n)
  bool Chance(int percent) { return In(1, 100) <= percent; }
  bool Coin() { return Chance(50); }
  double Real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  template <typename T>
  const T& Of(absl::Span<const T> values) {
    return values[Below(static_cast<int>(values.size()))];
  }
  // Of a list that is written where it is drawn from.
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return Of(absl::MakeConstSpan(values.begin(), values.size()));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_TEST_RANDOM_H_
