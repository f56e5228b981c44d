// What the fakes of CUDA's libraries share: streams to work on, and how a program is refused.
//
// Each fake has the symbols of a real library that our own code uses, and no others. A stream is a
// thread, which runs its work later; only what CUDA promises orders it: the order of a stream, an
// event and who waits for it, a synchronized stream. What CUDA leaves undefined ends the program
// with a line that says what was done; what CUDA answers with an error gets that error.
#ifndef DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_
#define DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_

#include <driver_types.h>

#include <cstddef>
#include <functional>

namespace dtensor::fake_cuda {

// Two, or as many as DTENSOR_FAKE_GPUS says, of 4 GiB each; 0 is a machine without any.
inline constexpr int kMostGpus = 8;
int Gpus();

// Runs `work` behind what `stream` has; null is the default stream of the thread's current GPU.
// Refuses a stream that is none, or no more.
void Enqueue(cudaStream_t stream, std::function<void()> work);

// Ends the process with status 67: "fake CUDA: <call>: <what>".
[[noreturn]] void Refuse(const char* call, const char* what);

// What `call` returns for `error`, which cudaGetLastError of this thread gives next.
cudaError_t Return(cudaError_t error);

// The GPU of a stream, which Enqueue would take.
int GpuOf(cudaStream_t stream);

// Refuses bytes that begin within memory of a GPU, or page-locked memory, and end outside of it;
// what begins elsewhere is the host's.
void RequireWithin(const char* call, const void* data, size_t bytes);
// Refuses bytes, if any, that are not all within memory of this GPU.
void RequireOnGpu(const char* call, int gpu, const void* data, size_t bytes);

// The program's end asks no more for what was not freed or destroyed, nor waits for streams: of a
// program that has given up a GPU; or, by DTENSOR_FAKE_LEAKS=forgiven, that keeps a failed world
// for the tensors that refer to it.
void ForgiveLeaks();
bool ForgivesLeaks();

// Of the calling thread, as cudaSetDevice left it; GPU 0, with a context there from now on, where
// nothing did.
int CurrentGpu();
// Refuses a call about a thing of `gpu` on a thread that has chosen no GPU: CUDA would make a
// context on GPU 0, which costs half a GB of its memory, or is an error there.
void RequireChosen(const char* call, int gpu);

// Returns when the streams of `gpu` have done what they have now. What CUDA may wait for, but does
// not promise to: TSan is told of no order.
void WaitForGpu(int gpu);
// Before a launch there. CUDA loads a kernel when it is first launched on a GPU, and may wait for
// all that runs on it then, unless CUDA_MODULE_LOADING=EAGER.
void LoadKernel(int gpu, const void* kernel);

// Whether kernels on `reader` may use memory of `owner` that is in no pool.
bool IsPeerEnabled(int reader, int owner);
// Refuses a kernel that is given memory of a GPU that its own, `gpu`, has no access to: each word
// of the arguments that is the address of such memory is taken for one.
void RequireAccess(int gpu, const void* arguments, size_t bytes);

}  // namespace dtensor::fake_cuda

#endif  // DTENSOR_TOOLS_CUDA_FAKE_FAKE_H_
