// The CPU with a queue: each launch runs later, on a thread of its own. A test fails on it if code
// relies on a result that is not ready yet.
#ifndef DTENSOR_RUNTIME_DEVICE_DEFERRED_DEFERRED_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_DEFERRED_DEFERRED_DEVICE_H_

#include <cstdint>
#include <memory>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

struct DeferredOptions {
  uint64_t seed = 0;
  int max_delay_us = 50;  // before each launch, uniform; less than 0 is 0
};

std::unique_ptr<Device> MakeDeferredDevice(DeferredOptions options = {});

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_DEFERRED_DEFERRED_DEVICE_H_
