// A CUDA toolkit without cuDNN: attention is the portable kernel's.
#include "dtensor/runtime/kernels/cuda/cudnn/attention_plans.h"

namespace dtensor::kernels::cuda {

AttentionPlans* AttentionPlans::Of(Device&) { return nullptr; }
AttentionPlans* AttentionPlansOf(const Device&) { return nullptr; }

}  // namespace dtensor::kernels::cuda
