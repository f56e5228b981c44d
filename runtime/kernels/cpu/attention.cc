#include "dtensor/runtime/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "dtensor/runtime/kernels/cpu/attention_block.h"
#include "dtensor/runtime/kernels/cpu/attention_scratch.h"
#include "dtensor/runtime/kernels/cpu/launch.h"

namespace dtensor::kernels::cpu {
namespace {

// How many indices of the set are less than `index`.
int64_t CountBelow(const IndexSet& set, int64_t index) {
  int64_t count = 0;
  for (const IndexRun& run : set.runs()) {
    if (index <= run.begin) break;
    const int64_t past = std::min(index, run.end()) - run.begin;
    const int64_t interval = run.count > 1 ? past / run.stride : 0;
    count += interval * run.length + std::min(past - interval * run.stride, run.length);
  }
  return count;
}

// Finds which keys of the block each query row sees, in ascending order of rows.
void FindSeenKeys(const AttentionArgs& args, SeenKeys* seen) {
  if (args.mask.kind() == AttentionMask::Kind::kFull) {
    std::fill_n(seen, args.q_positions.size(), SeenKeys{0, args.k_positions.size()});
    return;
  }
  for (const IndexRun& run : args.q_positions.runs()) {
    for (int64_t i = 0; i < run.size(); ++i) {
      const int64_t q = run.begin + i / run.length * run.stride + i % run.length;
      const KeyRange keys = args.mask.KeysOf(q);
      *seen++ = {CountBelow(args.k_positions, keys.begin), CountBelow(args.k_positions, keys.end)};
    }
  }
}

uint32_t* Expand(const IndexSet& set, uint32_t* out) {
  for (const IndexRun& run : set.runs()) {
    for (int64_t i = 0; i < run.size(); ++i) {
      *out++ = static_cast<uint32_t>(run.begin + i / run.length * run.stride + i % run.length);
    }
  }
  return out;
}

DropoutMask MaskOf(const AttentionArgs& args, uint32_t* indices) {
  DropoutMask mask;
  mask.seed = args.dropout_seed;
  mask.threshold = static_cast<uint32_t>(std::ceil(args.dropout_rate * 0x1p24));
  mask.scale = 1 / (1 - args.dropout_rate);
  mask.batches = indices;
  mask.heads = indices = Expand(args.batches, indices);
  mask.queries = indices = Expand(args.heads, indices);
  mask.keys = indices = Expand(args.q_positions, indices);
  Expand(args.k_positions, indices);
  return mask;
}

int64_t SeenBytes(const AttentionSizes& sizes) {
  return RoundUp(sizes.q_rows * static_cast<int64_t>(sizeof(SeenKeys)), 64);
}

// The bytes of the global indices of each batch entry, head, query and key, in this order.
int64_t IndexBytes(const AttentionSizes& sizes) {
  if (!sizes.drops) return 0;
  return (sizes.batch + sizes.q_heads + sizes.q_rows + sizes.keys) *
         static_cast<int64_t>(sizeof(uint32_t));
}

// The scratch memory holds the keys that each row sees, then `loop_bytes` bytes for the loops, then
// the global indices. It is filled when the launch runs: until then earlier work may still use it.
void RunStep(const AttentionArgs& args, int64_t loop_bytes, decltype(&RunAttention) run) {
  AttentionShape shape(args.sizes);
  SeenKeys* const seen = static_cast<SeenKeys*>(args.scratch);
  FindSeenKeys(args, seen);
  shape.seen = seen;
  char* const rest = static_cast<char*>(args.scratch) + SeenBytes(args.sizes);
  DropoutMask mask;
  if (shape.drops) {
    mask = MaskOf(args, reinterpret_cast<uint32_t*>(rest + loop_bytes));
    shape.dropout = &mask;
  }
  run(shape, args.operands, rest);
}

}  // namespace

int64_t AttentionScratch(const AttentionArgs& args) {
  return SeenBytes(args.sizes) + AttentionScratchBytes(AttentionShape(args.sizes)) +
         IndexBytes(args.sizes);
}

int64_t AttentionGradScratch(const AttentionArgs& args) {
  return SeenBytes(args.sizes) + AttentionGradScratchBytes(AttentionShape(args.sizes)) +
         IndexBytes(args.sizes);
}

// One number in the accumulator type for each part.
int64_t MergeAttentionScratch(const AttentionMergeArgs& args) {
  return static_cast<int64_t>(args.parts.o.size()) * SizeOf(AccumulatorOf(args.sizes.dtype));
}

absl::Status Attention(Device& device, const char* kernel, const AttentionArgs& args) {
  return Launch(device, kernel, args, [](const AttentionArgs& a) {
    RunStep(a, AttentionScratchBytes(AttentionShape(a.sizes)), &RunAttention);
  });
}

absl::Status AttentionGrad(Device& device, const char* kernel, const AttentionArgs& args) {
  return Launch(device, kernel, args, [](const AttentionArgs& a) {
    RunStep(a, AttentionGradScratchBytes(AttentionShape(a.sizes)), &RunAttentionGrad);
  });
}

absl::Status AttentionDelta(Device& device, const char* kernel, const AttentionDeltaArgs& args) {
  return Launch(device, kernel, args, [](const AttentionDeltaArgs& a) {
    RunAttentionDelta(AttentionShape(a.sizes), a.operands);
  });
}

absl::Status MergeAttention(Device& device, const char* kernel, const AttentionMergeArgs& args) {
  return Launch(device, kernel, args, [](const AttentionMergeArgs& a) {
    RunAttentionMerge(AttentionShape(a.sizes), a.parts, a.o, a.lse, a.scratch);
  });
}

}  // namespace dtensor::kernels::cpu
