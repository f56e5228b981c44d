// A GPU and a stream: of its own, or of the program's.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace DTENSOR_EXPORT dtensor {

struct KernelError;  // kernel_error.h

// With `stream`, a stream of that GPU which the program has (null: CUDA's default one), all work of
// the device goes there, in order with the program's own, and neither waits on the host. The stream
// outlives the device and stays the program's to destroy. Errors: kUnavailable when the library was
// built without --config=cuda or there is no such GPU.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(
    int ordinal, std::optional<CUstream_st*> stream = std::nullopt);

// --- For launches of kernels. Requires: a cuda device.
// Makes the device's GPU this thread's current one, and returns its stream. Errors: the device's
// failure.
absl::StatusOr<CUstream_st*> BeginCudaLaunch(Device& device);
// `error` is the cudaError_t of a launch there; but for success, the device fails. Returns that.
absl::Status EndCudaLaunch(Device& device, const char* kernel, int error);
// kCudaScratchBytes of the GPU's memory, 256-byte aligned, for what kernels launched one after the
// other hand on: whatever it holds is gone with the next function that uses it.
inline constexpr int64_t kCudaScratchBytes = 4 << 20;
void* CudaScratchOf(const Device& device);
// Where a kernel says what it found wrong; Synchronize() fails the device with it (kernel_error.h).
KernelError* CudaKernelErrorOf(const Device& device);

// Where the device's work goes, for programs that launch their own behind it or have another stream
// wait for it. Requires: a cuda device.
CUstream_st* CudaStreamOf(const Device& device);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
