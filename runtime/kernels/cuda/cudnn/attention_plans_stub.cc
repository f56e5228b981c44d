// For a CUDA toolkit without cuDNN: the portable kernel computes attention.
#include "dtensor/runtime/kernels/cuda/cudnn/attention_plans.h"

namespace dtensor::kernels::cuda {

AttentionPlans* AttentionPlans::Of(Device&) { return nullptr; }
AttentionPlans* AttentionPlansOf(const Device&) { return nullptr; }

}  // namespace dtensor::kernels::cuda
