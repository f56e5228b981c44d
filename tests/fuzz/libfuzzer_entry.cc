// Where libFuzzer calls a target.
#include <cstddef>
#include <cstdint>

#include "dtensor/tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  dtensor::fuzz::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
