#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/kernels/cuda/attention.h"
#include "dtensor/runtime/kernels/cuda/attention_merge-inl.h"
#include "dtensor/runtime/kernels/cuda/list-inl.h"

namespace dtensor::kernels::cuda {

absl::Status MergeAttention(Device& device, const char* kernel, const AttentionMergeArgs& args) {
  if (RowsOf(args.sizes) == 0) return device.failure();
  std::vector<MergePart> parts;
  for (size_t p = 0; p < args.parts.o.size(); ++p) {
    parts.push_back({args.parts.o[p], args.parts.lse[p]});
  }
  return WithList<4>(device, kernel, absl::MakeConstSpan(parts), [&](const auto& list) {
    return MergeParts(device, kernel, args.sizes, list, {args.o, args.lse});
  });
}

}  // namespace dtensor::kernels::cuda
