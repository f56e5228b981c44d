// A device without memory: it computes nothing, but counts the work and computes its time.
#ifndef DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_

#include <memory>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/machine_rates.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/simulated_clock.h"

namespace DTENSOR_EXPORT dtensor {

std::unique_ptr<Device> MakeMetaDevice(const MachineRates& rates = {});

// The clock of a meta device; null for other devices.
SimulatedClock* ClockOf(Device& device);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_META_META_DEVICE_H_
