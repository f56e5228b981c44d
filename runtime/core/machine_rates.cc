#include "dtensor/runtime/core/machine_rates.h"

#include "absl/strings/str_split.h"

namespace dtensor {

double MachineRates::GemmFlopsPerSecond(DType dtype) const {
  const double own = gemm_gf_per_second[static_cast<size_t>(dtype)];
  return 1e9 * (own > 0 ? own : multiply_gf_per_second);
}

double MachineRates::MemoryBytesPerSecond() const {
  return 1e9 * (memory_gb_per_second > 0 ? memory_gb_per_second : copy_gb_per_second);
}

const LinkSpeed& MachineRates::LinkOf(absl::string_view axis) const {
  const auto found = links.find(axis);
  return found == links.end() ? every_other_link : found->second;
}

const LinkSpeed& MachineRates::LinkOfLabel(absl::string_view axes) const {
  if (axes.find("->") != axes.npos) return every_other_link;
  const LinkSpeed* slowest = nullptr;
  for (const absl::string_view axis : absl::StrSplit(axes, ',')) {
    const LinkSpeed& link = LinkOf(axis);
    if (slowest == nullptr || link.gb_per_second < slowest->gb_per_second) slowest = &link;
  }
  return *slowest;
}

}  // namespace dtensor
