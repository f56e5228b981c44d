// Points in a CUDA stream, and the events that they are recorded with.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_POINT_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_POINT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"
#include "dtensor/runtime/device/cuda/current_gpu.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// Events of one GPU that are reused, since creating one costs more than recording it. Thread-safe,
// since peers release points.
class EventPool {
 public:
  explicit EventPool(int gpu) : gpu_(gpu) {}
  ~EventPool() {
    if (free_.empty()) return;
    const CurrentGpu current(gpu_);  // a peer's thread may hold the last reference
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  // Requires: the GPU is current, if no event is free.
  absl::StatusOr<cudaEvent_t> Take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    DT_CUDA(cudaEventCreateWithFlags, &event, cudaEventDisableTiming);
    return event;
  }
  void Give(cudaEvent_t event) {
    std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

  int gpu() const { return gpu_; }

 private:
  const int gpu_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// A failed GPU reports its error immediately to any thread that waits, so all points are reached.
// The same happens if the calling thread has not chosen a GPU and GPU 0 is not available
// (current_gpu.h).
class CudaPoint final : public DeviceEvent::State {
 public:
  CudaPoint(std::shared_ptr<EventPool> pool, cudaEvent_t event, uint64_t work)
      : pool_(std::move(pool)), event_(event), work_(work) {}
  ~CudaPoint() override { pool_->Give(event_); }
  // `work` is what work() returns.
  static absl::StatusOr<std::shared_ptr<CudaPoint>> Record(const std::shared_ptr<EventPool>& pool,
                                                           cudaStream_t stream, uint64_t work = 0) {
    DT_ASSIGN_OR_RETURN(const cudaEvent_t event, pool->Take());
    auto point = std::make_shared<CudaPoint>(pool, event, work);
    DT_CUDA(cudaEventRecord, event, stream);
    return point;
  }
  void Block() override {
    const CurrentGpu current(pool_->gpu());
    cudaEventSynchronize(event_);
  }
  // Requires: the thread has chosen a GPU.
  bool reached() const { return IsReady(cudaEventQuery(event_)); }
  cudaEvent_t get() const { return event_; }
  uint64_t work() const { return work_; }  // how much the device had been given

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
  const uint64_t work_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_POINT_H_
