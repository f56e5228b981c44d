// CurrentGpu: makes a GPU current for a while, on threads that may not be ours.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_

#include "absl/status/status.h"

namespace dtensor {

// CUDA keeps a current GPU for each thread: GPU 0 if none was chosen. The first call that needs a
// GPU creates a context there, which costs some hundred MB of its memory, or fails if another
// process has the GPU exclusively. So the GPU is chosen before CUDA is called for another one, and
// afterwards the thread's previous GPU is chosen again, if this process uses that GPU anyway. If it
// does not, the thread keeps the new GPU, since choosing the previous one would create its context.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

  // CUDA's error when the GPU was chosen.
  const absl::Status& status() const { return status_; }

 private:
  int before_ = -1;  // which is to be chosen again
  absl::Status status_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_
