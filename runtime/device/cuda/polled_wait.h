// PolledWait: how the host waits for a GPU: it polls, so that it can give up.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_

#include <chrono>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "dtensor/runtime/device/cuda/cuda_point.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// CUDA's own waits never return if a kernel waits for a dead rank. The thread that learns that the
// world has failed fails the device (Device::Fail, any thread) and ends such kernels. A wait
// continues for `patience` after that, and then returns although the GPU is still working. After a
// wait that gave up, later ones have only 0.1 s. For one thread at a time.
class PolledWait {
 public:
  explicit PolledWait(const Device& device) : device_(device) {}
  void set_patience(std::chrono::duration<double> patience) {
    patience_ = patience;
    gave_up_ = false;
  }
  // Called repeatedly during a wait; if it returns true, the wait ends immediately. Null: never.
  void set_gives_up(std::function<bool()> gives_up) { gives_up_ = std::move(gives_up); }

  // Waits until the point is reached. Errors: CUDA's; kDeadlineExceeded, with the device's failure
  // if it has one, if the wait gave up: the work before the point may then still access its memory
  // at any time.
  absl::Status For(const CudaPoint& point);

 private:
  const Device& device_;
  std::chrono::duration<double> patience_ = std::chrono::seconds(10);
  bool gave_up_ = false;
  std::function<bool()> gives_up_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_POLLED_WAIT_H_
