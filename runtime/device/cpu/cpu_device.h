// The CPU; each device uses one thread.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/page_source.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// Has a caching allocator: freed blocks are kept by size and reused, so a training step touches no
// fresh page (set_kept_bytes). Products are by oneDNN, on the device's one thread. Memory comes
// from `pages`; null: PrivatePages. For a program's own allocator see resource_pages.h.
std::unique_ptr<Device> MakeCpuDevice(std::shared_ptr<PageSource> pages = nullptr);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_CPU_DEVICE_H_
