#include "dtensor/runtime/device/cpu/resource_pages.h"

#include <cstdint>

#include "absl/status/status.h"
#include "dtensor/runtime/core/no_throw.h"

namespace dtensor {
namespace {

constexpr size_t AlignmentOf(int64_t bytes) {
  return bytes >= PageSource::kHugePage ? PageSource::kHugePage : 4096;
}

}  // namespace

void* ResourcePages::Map(int64_t bytes) {
  void* data = nullptr;
  NoThrow([&] {
    data = resource_->allocate(bytes, AlignmentOf(bytes));
    return absl::OkStatus();
  }).IgnoreError();  // null reports it
  return data;
}

void ResourcePages::Unmap(void* data, int64_t bytes) {
  resource_->deallocate(data, bytes, AlignmentOf(bytes));
}

}  // namespace dtensor
