// A device without memory: it counts, and computes nothing.
#ifndef DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_

#include <memory>

#include "dtensor/runtime/device/device.h"

namespace dtensor {

std::unique_ptr<Device> MakeMetaDevice();

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_
