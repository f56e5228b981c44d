#include "dtensor/runtime/device/cuda/pinned_staging.h"

#include <algorithm>
#include <cstring>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"

namespace dtensor {

PinnedStaging::~PinnedStaging() {
  for (const Slot& slot : slots_) cudaFreeHost(slot.data);
}

void PinnedStaging::Leak() {
  for (Slot& slot : slots_) slot = Slot();
}

absl::Status PinnedStaging::Reserve() {
  for (Slot& slot : slots_) DT_CUDA(cudaMallocHost, &slot.data, kSlotBytes);
  return absl::OkStatus();
}

absl::StatusOr<bool> PinnedStaging::IsPageable(const void* data) {
  cudaPointerAttributes known;
  DT_CUDA(cudaPointerGetAttributes, &known, data);
  return known.type == cudaMemoryTypeUnregistered;
}

absl::StatusOr<PinnedStaging::Slot*> PinnedStaging::NextSlot() {
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  if (slot.used != nullptr) DT_RETURN_IF_ERROR(wait_.For(*slot.used));
  slot.used = nullptr;
  return &slot;
}

absl::Status PinnedStaging::Copy(Slot& slot, void* dst, const void* src, int64_t bytes,
                                 cudaStream_t stream) {
  DT_CUDA(cudaMemcpyAsync, dst, src, bytes, cudaMemcpyDefault, stream);
  DT_ASSIGN_OR_RETURN(slot.used, CudaPoint::Record(events_, stream));
  return absl::OkStatus();
}

absl::Status PinnedStaging::ToGpu(void* dst, const void* src, int64_t bytes, cudaStream_t stream) {
  for (int64_t at = 0; at < bytes; at += kSlotBytes) {
    const int64_t here = std::min(bytes - at, kSlotBytes);
    DT_ASSIGN_OR_RETURN(Slot* const slot, NextSlot());
    std::memcpy(slot->data, static_cast<const char*>(src) + at, here);
    DT_RETURN_IF_ERROR(Copy(*slot, static_cast<char*>(dst) + at, slot->data, here, stream));
  }
  return absl::OkStatus();
}

// While the host empties one slot, the GPU fills the other.
absl::Status PinnedStaging::ToHost(void* dst, const void* src, int64_t bytes, cudaStream_t stream) {
  Slot* before = nullptr;
  for (int64_t at = 0; at < bytes + kSlotBytes; at += kSlotBytes) {
    Slot* slot = nullptr;
    if (at < bytes) {
      DT_ASSIGN_OR_RETURN(slot, NextSlot());
      DT_RETURN_IF_ERROR(Copy(*slot, slot->data, static_cast<const char*>(src) + at,
                              std::min(bytes - at, kSlotBytes), stream));
    }
    if (before != nullptr) {
      DT_RETURN_IF_ERROR(wait_.For(*before->used));
      const int64_t from = at - kSlotBytes;
      std::memcpy(static_cast<char*>(dst) + from, before->data, std::min(bytes - from, kSlotBytes));
    }
    before = slot;
  }
  return absl::OkStatus();
}

}  // namespace dtensor
