// Transfers of a GPU that its kernels do not hold up.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_TRANSFERS_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_TRANSFERS_H_

#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

namespace DTENSOR_EXPORT dtensor {

// As long as one lives, what the device is given (launches, copies, fills, waits, points, memory;
// not products) goes to a second queue of the GPU, of high priority. That queue begins at `begin`,
// a point which this device recorded: so it runs beside what the device was given since, and
// neither may write what the other touches. What is given afterwards comes behind both.
//
// Does nothing on other devices; nor where a cuda device was given nothing since `begin`, since
// there is nothing to run beside. An error of CUDA fails the device. One at a time; the rank's
// thread.
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
