// The CPU, one thread for each device.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/page_source.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Caching allocator (freed blocks are kept by size and handed out again, so a training step
// touches no fresh page: set_kept_bytes); oneDNN for products, one thread per device. Memory comes
// from `pages`; null: PrivatePages. A program's own allocator: resource_pages.h.
std::unique_ptr<Device> MakeCpuDevice(std::shared_ptr<PageSource> pages = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_
