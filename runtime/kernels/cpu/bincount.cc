#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/cpu/ids.h"
#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/reduce.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

void Count(const BincountArgs& a) {
  std::vector<std::byte> scratch;
  const Ids ids(Packed(a.ids, scratch), a.id_dtype);
  std::vector<int64_t> counts(a.bins);
  for (int64_t i = 0; i < a.num_ids; ++i) {
    if (0 <= ids[i] && ids[i] < a.bins) ++counts[ids[i]];
  }
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    std::transform(counts.begin(), counts.end(), static_cast<T*>(a.counts), Cast<T, int64_t>);
  });
}

}  // namespace

absl::Status Bincount(Device& device, const char* kernel, const BincountArgs& args) {
  return Launch(device, kernel, args, Count);
}

}  // namespace dtensor::kernels::cpu
