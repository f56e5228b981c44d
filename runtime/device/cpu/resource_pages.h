// ResourcePages: memory of the program's own allocator, instead of the system's.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_RESOURCE_PAGES_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_RESOURCE_PAGES_H_

#include <memory>
#include <memory_resource>
#include <utility>

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/cpu/page_source.h"

namespace DTENSOR_EXPORT dtensor {

// `resource` is asked for whole blocks: aligned to 2 MiB from 2 MiB on, to 4096 bytes below. The
// device that uses these pages places its tensors in them, and keeps what is freed as
// Device::set_kept_bytes says. If the resource throws std::bad_alloc or returns null, the tensor is
// refused. Called by whichever thread uses the device.
class ResourcePages final : public PageSource {
 public:
  // Requires: not null.
  explicit ResourcePages(std::shared_ptr<std::pmr::memory_resource> resource)
      : resource_(std::move(resource)) {}
  void* Map(int64_t bytes) override;
  void Unmap(void* data, int64_t bytes) override;
  absl::string_view owner() const override { return "the program's memory resource"; }

 private:
  const std::shared_ptr<std::pmr::memory_resource> resource_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_RESOURCE_PAGES_H_
