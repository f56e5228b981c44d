// CurrentGpu: a thread's GPU for a while, on threads that may be none of ours.
#ifndef DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_
#define DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_

#include "absl/status/status.h"

namespace dtensor {

// CUDA keeps a current GPU for each thread: GPU 0 where nothing was chosen, and the first call that
// needs one makes a context there, which costs some hundred MB of its memory, or is an error where
// another process has it for itself. So whoever calls CUDA for another GPU chooses that before, and
// what the thread had is chosen again afterwards where this process uses that GPU anyway. Where it
// does not, the thread stays: to choose it again would make the context.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu);
  ~CurrentGpu();
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

  // CUDA's, of the choice.
  const absl::Status& status() const { return status_; }

 private:
  int before_ = -1;  // which is to be chosen again
  absl::Status status_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_DEVICE_CUDA_CURRENT_GPU_H_
