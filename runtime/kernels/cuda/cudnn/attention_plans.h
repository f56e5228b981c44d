// cuDNN on one device: its handle, the plans that it has made, and whether it may be used.
//
// A plan is made once for each key, which takes from milliseconds to a second, and kept with the
// device; once there are 1,024 plans, all are dropped. What cuDNN refuses is remembered as well. In
// builds without cuDNN there is none (attention_plans_stub.cc).
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_PLANS_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_PLANS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_choice.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_key.h"

namespace dtensor::kernels::cuda {

struct AttentionPlan;

// Addresses of a run's tensors. Forward writes o and lse, and needs no others of the second line;
// backward reads them.
struct AttentionPointers {
  void *q, *k, *v, *o, *lse;
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

// Of a device, made when first asked for. Used by the device's thread. cuDNN itself is started by
// the first Find().
class AttentionPlans : public CudaState {
 public:
  // Null without cuDNN 9.19 or newer.
  static AttentionPlans* Of(Device& device);

  // Null where cuDNN has no kernels for it, cannot make any, or cannot start. Backward is asked for
  // on GPUs of compute capability 8.x and 9.x alone: on newer ones the graph may be served by
  // engines that add up in any order. The plan lives until the next call. Errors: the device's
  // failure; no memory, which fails the device.
  virtual absl::StatusOr<const AttentionPlan*> Find(const AttentionKey& key) = 0;
  // Of a run, 256-byte aligned.
  virtual int64_t WorkspaceBytes(const AttentionPlan& plan) const = 0;
  // Launches a run. Errors: the device's failure; cuDNN's, which fail the device.
  virtual absl::Status Run(const AttentionPlan& plan, const AttentionPointers& pointers,
                           double scale, void* workspace) = 0;

  bool allowed = true;  // whether steps may be computed here
  int64_t score_bytes = kScoreBytes;
  int64_t steps = 0;  // that were
};

// What the device has already; null if nobody asked yet.
AttentionPlans* AttentionPlansOf(const Device& device);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_PLANS_H_
