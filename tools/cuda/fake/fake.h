// What the fakes of CUDA's libraries share: streams to work on, and how a program is stopped.
//
// Each fake has those symbols of a real library that our own code uses, and no others. A stream is
// a thread, which runs its work later. Work is ordered only by what CUDA promises: the order of a
// stream, an event and the stream that waits for it, a synchronized stream. If a program does what
// CUDA leaves undefined, the fake ends it with a line that says what was done. If CUDA would return
// an error, the fake returns that error.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_
#define DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_

#include <driver_types.h>

#include <cstddef>
#include <functional>

namespace dtensor::fake_cuda {

// The number of GPUs, of 4 GiB each: DTENSOR_FAKE_GPUS, else two; 0 is a machine without GPUs.
inline constexpr int kMostGpus = 8;
int Gpus();

// Runs `work` after what `stream` already has; null is the default stream of the thread's current
// GPU. Stops the program if the stream does not exist, or no longer exists.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// Ends the process with status 67: "fake CUDA: <call>: <what>".
[[noreturn]] void Refuse(const char* call, const char* what);

// Makes `call` return `error`, and cudaGetLastError of this thread return it next.
cudaError_t Return(cudaError_t error);

// The GPU of a stream, as Enqueue takes it.
int GpuOf(cudaStream_t stream);

// Stops the program if the bytes begin within memory of a GPU, or page-locked memory, and end
// outside of it. What begins elsewhere is host memory.
void RequireWithin(const char* call, const void* data, size_t bytes);
// Stops the program unless all the bytes are within memory of this GPU.
void RequireOnGpu(const char* call, int gpu, const void* data, size_t bytes);

// From now on, the program's end neither reports what was not freed or destroyed, nor waits for
// streams: for a program that has given up a GPU; or, by DTENSOR_FAKE_LEAKS=forgiven, that keeps a
// failed world for the tensors that refer to it.
void ForgiveLeaks();
bool ForgivesLeaks();

// The calling thread's GPU, as set by cudaSetDevice. If nothing was set, it is GPU 0, which has a
// context from now on.
int CurrentGpu();
// Stops the program if a thread that has chosen no GPU makes a call about something of `gpu`: CUDA
// would create a context on GPU 0, which costs half a GB of its memory, or fails there.
void RequireChosen(const char* call, int gpu);

// Returns when the streams of `gpu` have done what they have now. CUDA may wait like this, but does
// not promise to, so TSan is told of no order.
void WaitForGpu(int gpu);
// Call it before a launch on that GPU. CUDA loads a kernel when it is first launched on a GPU, and
// may then wait for everything that runs there, unless CUDA_MODULE_LOADING=EAGER.
void LoadKernel(int gpu, const void* kernel);

// Whether kernels on `reader` may access memory of `owner` that is in no pool.
bool IsPeerEnabled(int reader, int owner);
// Stops the program if a kernel is given memory of a GPU that its own, `gpu`, cannot access. Each
// word of the arguments that is the address of such memory is taken for a pointer to it.
void RequireAccess(int gpu, const void* arguments, size_t bytes);

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_
