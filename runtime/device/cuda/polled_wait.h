// How the host waits for a GPU: it asks, so that it can give up.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_

#include <chrono>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// CUDA's own waits never return where a kernel waits for a rank that is gone. Whoever learns that
// the world has failed fails the device (Device::Fail, any thread) and ends such kernels; a wait
// goes on for `patience` after that, and then returns although the GPU works on. There is no
// patience left for waits after one that gave up, but for 0.1 s. For one thread at a time.
class PolledWait {
 public:
  explicit PolledWait(const Device& device) : device_(device) {}
  void set_patience(std::chrono::duration<double> patience) {
    patience_ = patience;
    gave_up_ = false;
  }
  // Asked again and again while a wait goes on; then it ends at once. Null: never.
  void set_gives_up(std::function<bool()> gives_up) { gives_up_ = std::move(gives_up); }

  // Until the point is reached. Errors: CUDA's; kDeadlineExceeded, with the device's failure if it
  // has one, when it gave up: then the work before the point may touch its memory at any time.
  absl::Status For(const CudaPoint& point);

 private:
  const Device& device_;
  std::chrono::duration<double> patience_ = std::chrono::seconds(10);
  bool gave_up_ = false;
  std::function<bool()> gives_up_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_
