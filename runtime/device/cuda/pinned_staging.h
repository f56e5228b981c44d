// Copies between a GPU and host memory that is not page-locked, through a page-locked buffer.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_PINNED_STAGING_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_PINNED_STAGING_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/cuda/polled_wait.h"

namespace dtensor {

// CUDA's own copies of such memory block the host, and a failure of the world would not end that
// wait. Takes 2 x kSlotBytes of page-locked memory. For one thread.
class PinnedStaging {
 public:
  static constexpr int64_t kSlotBytes = int64_t{1} << 20;

  // Requires: both outlive it.
  PinnedStaging(const std::shared_ptr<EventPool>& events, PolledWait& wait)
      : events_(events), wait_(wait) {}
  // Requires: the streams' work is done, or Leak() was called to give it up.
  ~PinnedStaging();
  void Leak();

  // Call it before the first copy, and before there is work to wait for: CUDA may wait for all work
  // of the GPU in order to page-lock memory. Requires: the GPU is current. Errors: CUDA's.
  absl::Status Reserve();

  // Whether CUDA knows nothing of `data`, so that it is plain host memory.
  static absl::StatusOr<bool> IsPageable(const void* data);

  // Returns when `src` has been read; the GPU may still have to receive it.
  absl::Status ToGpu(void* dst, const void* src, int64_t bytes, cudaStream_t stream);
  // Returns when `dst` has been written. Waits for the stream. Errors: as PolledWait; after an
  // error, `dst` is not written any more.
  absl::Status ToHost(void* dst, const void* src, int64_t bytes, cudaStream_t stream);

 private:
  struct Slot {
    void* data = nullptr;
    std::shared_ptr<CudaPoint> used;  // null: it is free
  };
  // Returns a free slot, after waiting for its last use.
  absl::StatusOr<Slot*> NextSlot();
  absl::Status Copy(Slot& slot, void* dst, const void* src, int64_t bytes, cudaStream_t stream);

  const std::shared_ptr<EventPool>& events_;
  PolledWait& wait_;
  Slot slots_[2];
  int next_ = 0;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_PINNED_STAGING_H_
