#include "dtensor/runtime/testing/test_random.h"

#include <cstdlib>
#include <iostream>

namespace dtensor {

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("DTENSOR_SEED");
    const uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::cerr << "DTENSOR_SEED=" << chosen << " repeats this run" << std::endl;
    return chosen;
  }();
  return seed;
}

}  // namespace dtensor
