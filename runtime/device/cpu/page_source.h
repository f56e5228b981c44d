// PageSource: where an allocator of host memory takes whole pages from.
#ifndef DTENSOR_RUNTIME_DEVICE_CPU_PAGE_SOURCE_H_
#define DTENSOR_RUNTIME_DEVICE_CPU_PAGE_SOURCE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class PageSource {
 public:
  static constexpr int64_t kHugePage = int64_t{2} << 20;

  virtual ~PageSource() = default;
  // Readable and writable pages, with any values; from kHugePage on they begin at a huge page, and
  // are huge where the system has any: a first touch then costs one fault for 2 MiB instead of 512.
  // Null where there are no more. Requires: whole pages of 4096 bytes, at least one.
  virtual void* Map(int64_t bytes) = 0;
  // What Map(bytes) returned goes back.
  virtual void Unmap(void* data, int64_t bytes) = 0;
  // Who refuses, in errors.
  virtual absl::string_view owner() const { return "the system"; }
};

// Of this process alone, from the system.
class PrivatePages final : public PageSource {
 public:
  void* Map(int64_t bytes) override;
  void Unmap(void* data, int64_t bytes) override;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_PAGE_SOURCE_H_
