#include "dtensor/runtime/testing/test_random.h"

#include <cstdlib>
#include <iostream>

namespace dtensor {

uint64_t TestSeed() {
  const char* const given = std::getenv("DTENSOR_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::cerr << "DTENSOR_SEED=" << seed << " repeats this" << std::endl;
  return seed;
}

}  // namespace dtensor
