// A kernel that keeps a GPU's queue waiting until a test lets it go.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_CUDA_GATE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_CUDA_GATE_H_

#include "absl/status/status.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

// Goes after the work that it holds up. Any thread may open it.
class CudaGate {
 public:
  CudaGate();  // closed
  ~CudaGate();
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;

  // What the device is given from now on waits until the gate opens.
  absl::Status HoldUp(Device& device);
  void Open();

 private:
  unsigned* open_ = nullptr;  // page-locked
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_TESTING_CUDA_GATE_H_
