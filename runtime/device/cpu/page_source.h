// PageSource: supplies an allocator of host memory with whole pages.
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
  // Returns readable and writable pages, with unspecified contents. From kHugePage on they begin at
  // a huge page boundary, and are huge pages if the system has any: the first touch then costs one
  // fault per 2 MiB instead of 512. Null if there are no more. Requires: whole pages of 4096 bytes,
  // at least one.
  virtual void* Map(int64_t bytes) = 0;
  // Gives back what Map(bytes) returned.
  virtual void Unmap(void* data, int64_t bytes) = 0;
  // Names, in errors, whose memory ran out.
  virtual absl::string_view owner() const { return "the system"; }
};

// Pages from the system, for this process alone.
class PrivatePages final : public PageSource {
 public:
  void* Map(int64_t bytes) override;
  void Unmap(void* data, int64_t bytes) override;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CPU_PAGE_SOURCE_H_
