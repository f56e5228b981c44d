// Which steps of attention cuDNN computes on a GPU, and in which pieces: pure functions of the
// arguments, so that all runs of a shape go the same way. docs/cuda.md has them as a table.
//
// cuDNN's own kernels are fused for whole blocks and for causal ones, of 16-bit types. All else is
// the portable kernel's (attention.cu), which computes any step; so is what cuDNN refuses when it
// is asked for a plan (attention_plans.h).
#ifndef DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_CHOICE_H_
#define DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_CHOICE_H_

#include <cstdint>

#include "dtensor/runtime/kernels/arguments/attention_args.h"

namespace dtensor::kernels::cuda {

// Fewer queries or keys do not fill one of cuDNN's tiles.
inline constexpr int64_t kLeastCudnnRows = 64;
inline constexpr int64_t kMostCudnnFeatures = 128;
// Addresses and strides of operands, in bytes.
inline constexpr int64_t kCudnnAlignment = 16;
// What backward may keep for one run unless told otherwise: a deterministic one has all scores, in
// 16 bits, in memory.
inline constexpr int64_t kScoreBytes = int64_t{512} << 20;

struct AttentionChoice {
  bool by_cudnn = false;
  bool causal = false;            // query row i sees key rows j <= i; else it sees all
  const char* why_not = nullptr;  // where the portable kernel computes it: a string literal
};

// Forward: what of `args` says whose step it is. Pointers are looked at for alignment alone.
AttentionChoice ChooseAttention(const AttentionArgs& args);
// Backward: needs the final o of the rows besides, in the operands' type (operands.o).
// `score_bytes`: what one run may keep.
AttentionChoice ChooseAttentionGrad(const AttentionArgs& args, int64_t score_bytes = kScoreBytes);

// A step of backward is computed in runs: `batch` entries and `kv_heads` key heads, with their
// query heads, at a time. Either divides the step's; `batch` is all of them, or 1.
struct AttentionRuns {
  int64_t batch, kv_heads;
};
// As few as keep within `score_bytes` each. Requires: one key head of one entry does.
AttentionRuns RunsOf(const AttentionSizes& sizes, int64_t score_bytes = kScoreBytes);

}  // namespace dtensor::kernels::cuda

#endif  // DTENSOR_RUNTIME_KERNELS_CUDA_CUDNN_ATTENTION_CHOICE_H_
