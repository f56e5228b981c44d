// CudaTransfers: transfers of a GPU that do not wait for its kernels.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_TRANSFERS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_TRANSFERS_H_

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// While one exists, work for the device (launches, copies, fills, waits, points, memory; not
// products) goes to a second queue of the GPU, with high priority. That queue starts at `begin`, a
// point that this device recorded. So its work runs concurrently with what the device was given
// since `begin`, and neither may write what the other uses. What is launched after the
// CudaTransfers is gone runs behind both.
//
// Does nothing on other devices, or if a cuda device was given no work since `begin`. An error of
// CUDA fails the device. One at a time, on the rank's thread.
class CudaTransfers {
 public:
  CudaTransfers(Device& device, const DeviceEvent& begin);
  ~CudaTransfers();
  CudaTransfers(const CudaTransfers&) = delete;
  CudaTransfers& operator=(const CudaTransfers&) = delete;

 private:
  Device* device_ = nullptr;  // null: it does nothing
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_TRANSFERS_H_
