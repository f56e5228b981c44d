// A GPU and a stream: of its own, or of the program's.
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

// Memory of the program's own allocator, in a stream's order. Called on the device's thread, with
// its GPU current; both are there, or neither.
struct CudaAllocator {
  // Memory of this GPU, 256-byte aligned, for what is launched on `stream` from now on; nullptr
  // where there is none. bytes > 0.
  std::function<void*(int64_t bytes, CUstream_st* stream)> allocate;
  // Takes it back, behind what `stream` has.
  std::function<void(void* data, int64_t bytes, CUstream_st* stream)> free;
};

// With `stream`, a stream of that GPU which the program has (null: CUDA's default one), all work of
// the device goes there, in order with the program's own, and neither waits on the host. The stream
// outlives the device and stays the program's to destroy. With `allocator`, tensors' memory is from
// there, which must outlive them, and set_kept_bytes and Trim are its own business; else from the
// GPU's default pool. Errors: kUnavailable when the library was built without --config=cuda or
// there is no such GPU; kInvalidArgument for half an allocator, cudaStreamPerThread and a stream of
// another GPU.
//
// The calling thread's current GPU stays what it was: here, where the device is destroyed, waited
// for or trimmed, and where its tensors go. What launches or allocates makes the device's GPU the
// current one.
//
// Copies from and to memory of the host that is not page-locked go through memory that is: their
// source has been read, and their destination written, when they return.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(
    int ordinal, std::optional<CUstream_st*> stream = std::nullopt,
    const CudaAllocator& allocator = {});

// How long the host still waits for the GPU once the device has failed: 10 s unless set. A kernel
// that waits for a rank that is gone never ends; Synchronize() then returns, the memory of what was
// launched stays where it is, for good, and nothing else of the device is freed: deleters of memory
// that it was given do not run. Requires: a cuda device.
void SetCudaPatience(Device& device, double seconds);

// The GPU's compute capability, 90 for 9.0: some kernels are of one alone. Requires: a cuda device.
int CudaCapabilityOf(const Device& device);
// From now on the device's kernels are those that GPUs of at most this capability have: to test
// them on newer ones. Requires: a cuda device.
void LimitCudaCapability(Device& device, int at_most);

// --- For launches of kernels. Requires: a cuda device.
// Makes the device's GPU this thread's current one, and returns its stream. Errors: the device's
// failure.
absl::StatusOr<CUstream_st*> BeginCudaLaunch(Device& device);
// `error` is the cudaError_t of a launch there; but for success, the device fails. Returns that.
absl::Status EndCudaLaunch(Device& device, const char* kernel, int error);
// kCudaScratchBytes of the GPU's memory, 256-byte aligned, for what kernels launched one after the
// other hand on: whatever it holds is gone with the next function that uses it.
inline constexpr int64_t kCudaScratchBytes = 8 << 20;
void* CudaScratchOf(const Device& device);
// Where a kernel says what it found wrong; Synchronize() fails the device with it (kernel_error.h).
KernelError* CudaKernelErrorOf(const Device& device);

// What kernels keep with a device, as a library's handle and its plans: destroyed with the device,
// once its stream has ended its work, with its GPU current; and left where it never ends. Null
// until set. Of the device's thread.
class CudaState {
 public:
  virtual ~CudaState() = default;
};
std::unique_ptr<CudaState>& CudaStateOf(const Device& device);

// --- For transports whose work on a GPU may never end: a peer died.
// From now on a wait for the device's stream asks, again and again, whether it is to be given up;
// then it ends, the device has failed, and nothing more is asked of the GPU by it, nor freed.
// `gives_up` may be called until the device is destroyed. Requires: a cuda device.
void SetCudaWaitLimit(Device& device, std::function<bool()> gives_up);
// Whether a cuda device's event has happened, at once. Any thread that has chosen a GPU
// (cudaSetDevice): on others CUDA would ask for GPU 0.
bool HasHappened(const DeviceEvent& event);
// A stream of this GPU whose work goes before that of others. Errors: CUDA's.
absl::StatusOr<CUstream_st*> MakeUrgentStream(int ordinal);
void DestroyStream(CUstream_st* stream);

// Where the device's work goes, for programs that launch their own behind it or have another stream
// wait for it. Requires: a cuda device.
CUstream_st* CudaStreamOf(const Device& device);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CUDA_DEVICE_H_
