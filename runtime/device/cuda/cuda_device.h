// A GPU with a stream, of its own or of the program's.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/device/device.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace DTENSOR_EXPORT dtensor {

struct KernelError;  // kernel_error.h

// The program's own allocator, stream-ordered. Called on the device's thread, with its GPU current.
// Set both functions, or neither.
struct CudaAllocator {
  // Returns memory of this GPU, 256-byte aligned, for what is launched on `stream` from now on;
  // nullptr if there is none. bytes > 0.
  std::function<void*(int64_t bytes, CUstream_st* stream)> allocate;
  // Takes the memory back, after what was launched on `stream`.
  std::function<void(void* data, int64_t bytes, CUstream_st* stream)> free;
};

// With `stream`, a stream of the program's on that GPU (null: CUDA's default stream), all work of
// the device goes there, in order with the program's own work, and neither waits on the host. The
// stream must outlive the device, and remains the program's to destroy. With `allocator`, the
// memory of tensors comes from it; it must outlive them, and set_kept_bytes and Trim do not affect
// it. Otherwise memory comes from the GPU's default pool. Errors: kUnavailable if the library was
// built without --config=cuda or there is no such GPU; kInvalidArgument for half an allocator,
// cudaStreamPerThread, and a stream of another GPU.
//
// The calling thread's current GPU stays what it was: here, when the device is destroyed, waited
// for or trimmed, and when its tensors are freed. Calls that launch or allocate make the device's
// GPU current.
//
// Copies from and to host memory that is not page-locked go through a page-locked buffer: when they
// return, their source has been read, or their destination written.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(
    int ordinal, std::optional<CUstream_st*> stream = std::nullopt,
    const CudaAllocator& allocator = {});

// How long the host still waits for the GPU once the device has failed: 10 s unless set. A kernel
// that waits for a dead rank never ends. Then Synchronize() returns, the memory of what was
// launched is never freed, nor is anything else of the device, and deleters of adopted memory do
// not run. Requires: a cuda device.
void SetCudaPatience(Device& device, double seconds);

// The GPU's compute capability, 90 for 9.0: some kernels exist for one capability only. Requires: a
// cuda device.
int CudaCapabilityOf(const Device& device);

// --- For launches of kernels. Requires: a cuda device.
// Makes the device's GPU this thread's current one, and returns its stream. Errors: the device's
// failure.
absl::StatusOr<CUstream_st*> BeginCudaLaunch(Device& device);
// `error` is the cudaError_t of a launch there; if it is no success, the device fails. Returns its
// status.
absl::Status EndCudaLaunch(Device& device, const char* kernel, int error);
// kCudaScratchBytes of the GPU's memory, 256-byte aligned, for passing values between kernels
// launched one after the other. The next function that uses it overwrites it.
inline constexpr int64_t kCudaScratchBytes = 8 << 20;
void* CudaScratchOf(const Device& device);
// Where a kernel reports what it found wrong; Synchronize() fails the device with it
// (kernel_error.h).
KernelError* CudaKernelErrorOf(const Device& device);

// What kernels keep with a device, such as a library's handle and its plans. It is destroyed with
// the device, once its stream has ended its work, with its GPU current; if the stream never ends,
// it is leaked. Null until set. For the device's thread.
class CudaState {
 public:
  virtual ~CudaState() = default;
};
std::unique_ptr<CudaState>& CudaStateOf(const Device& device);

// --- For transports whose work on a GPU may never end because a peer died. From now on a wait for
// the device's stream repeatedly calls `gives_up`. If that returns true, the wait ends, the device
// has failed, and it neither uses the GPU any more nor frees anything on it. `gives_up` may be
// called until the device is destroyed. Requires: a cuda device.
void SetCudaWaitLimit(Device& device, std::function<bool()> gives_up);
// Whether a cuda device's event has happened; does not block. From any thread that has chosen a GPU
// (cudaSetDevice); on others CUDA would use GPU 0.
bool HasHappened(const DeviceEvent& event);
// Makes a stream of this GPU whose work has priority over that of other streams. Errors: CUDA's.
absl::StatusOr<CUstream_st*> MakeUrgentStream(int ordinal);
void DestroyStream(CUstream_st* stream);

// The stream on which the device's work runs, for programs that launch their own work behind it, or
// let another stream wait for it. Requires: a cuda device.
CUstream_st* CudaStreamOf(const Device& device);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
