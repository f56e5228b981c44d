// On which device a test's ranks compute that could do so on any. Where they should on GPUs, and
// there is none, all tests of the program are skipped.
#ifndef DTENSOR_TENSOR_TESTING_SUITE_DEVICE_H_
#define DTENSOR_TENSOR_TESTING_SUITE_DEVICE_H_

#include <cstdlib>
#include <string>

#include "dtensor/runtime/device/device.h"

namespace dtensor {

// `usual`, or kCuda where $DTENSOR_SUITE_DEVICE is "cuda", which the suites of conformance set too.
inline Device::Kind SuiteDevice(Device::Kind usual = Device::Kind::kCpu) {
  const char* const device = std::getenv("DTENSOR_SUITE_DEVICE");
  return device != nullptr && std::string(device) == "cuda" ? Device::Kind::kCuda : usual;
}

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_TESTING_SUITE_DEVICE_H_
