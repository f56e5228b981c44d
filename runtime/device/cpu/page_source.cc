#include "dtensor/runtime/device/cpu/page_source.h"

#include <sys/mman.h>

namespace dtensor {

void* PrivatePages::Map(int64_t bytes) {
  const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (slack == 0) return mapped;
  char* data = static_cast<char*>(mapped);
  const int64_t head = -reinterpret_cast<uintptr_t>(data) % kHugePage;
  if (head > 0) munmap(data, head);
  data += head;
  if (slack > head) munmap(data + bytes, slack - head);
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

void PrivatePages::Unmap(void* data, int64_t bytes) { munmap(data, bytes); }

}  // namespace dtensor
