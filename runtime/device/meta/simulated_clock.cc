#include "dtensor/runtime/device/meta/simulated_clock.h"

#include <algorithm>

#include "absl/strings/str_split.h"

namespace dtensor {

void SimulatedClock::Compute(const KernelWork& work) {
  work_.Add(work);
  const double products = work.gemm_flops / rates_.GemmFlopsPerSecond(work.dtype) +
                          work.attention_flops / (rates_.multiply_gf_per_second * 1e9);
  const double memory = work.bytes / rates_.MemoryBytesPerSecond();
  time_.compute_seconds += std::max(products, memory) + rates_.call_us * 1e-6;
}

double SimulatedClock::Communicate(absl::string_view axes, double seconds) {
  double end = time_.total();
  for (const absl::string_view axis : absl::StrSplit(axes, ',')) {
    const auto link = free_at_.find(axis);
    if (link != free_at_.end()) end = std::max(end, link->second);
  }
  end += seconds;
  for (const absl::string_view axis : absl::StrSplit(axes, ',')) {
    free_at_[std::string(axis)] = end;
  }
  time_.communication_seconds += seconds;
  return end;
}

void SimulatedClock::WaitUntil(double end) {
  time_.exposed_seconds += std::max(0.0, end - time_.total());
}

}  // namespace dtensor
