// What this machine's GPUs do, a line for each figure:
//
//   bazel run --config=cuda -c opt //bench/gpu:gpu_benchmark -- [--tiny] [one] [ranks=N]...
//   dtrun -n N gpu_benchmark [--tiny] nccl
//
// `one`: one GPU; `ranks=N`: N ranks as threads on the GPUs that there are. Without a part, one and
// ranks=2. `nccl`: exchanges of the processes that a launcher has started (docs/running.md), each
// with a GPU of its own. A share is of a limit that was measured in the same run. --tiny: sizes for
// fakes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "dtensor/bench/gpu/figure.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::bench {
namespace {

void Print(const Figure& figure) {
  std::printf("%-44s %12.2f %-5s", figure.name.c_str(), figure.value, figure.unit.c_str());
  if (!figure.limit.empty()) std::printf("  %5.2f of %s", figure.share, figure.limit.c_str());
  std::printf("%s%s\n", figure.remarks.empty() ? "" : "  ", figure.remarks.c_str());
  std::fflush(stdout);
}

// The rate of an exchange is taken by one clock, which processes of a host share.
absl::Status RunAsRank(const Scale& scale) {
  if (LaunchedRanks() < 2) {
    return absl::FailedPreconditionError(
        "no launcher has made this process one of several ranks; start it by dtrun -n N, torchrun "
        "or mpirun");
  }
  DT_ASSIGN_OR_RETURN(const auto world,
                      JoinWorld({.timeout_seconds = 300, .device = Device::Kind::kCuda}));
  if (world->local_rank() != world->context().rank()) {
    return world->Leave(absl::UnimplementedError(
        "exchanges are measured between processes of one host; start all of them there"));
  }
  return world->Leave(MeasureNccl(world->context(), scale, Print));
}

absl::Status RunPart(absl::string_view part, const Scale& scale) {
  int ranks = 0;
  if (part == "one") {
    auto device = MakeCudaDevice(0);
    if (!device.ok()) return device.status();
    return MeasureOneGpu(**device, scale, Print);
  }
  if (absl::ConsumePrefix(&part, "ranks=") && absl::SimpleAtoi(part, &ranks) && ranks > 1) {
    return MeasureRanks(ranks, scale, Print);
  }
  if (part == "nccl") return RunAsRank(scale);
  return absl::InvalidArgumentError("a part is `one`, `nccl`, or `ranks=N` for N > 1");
}

int Main(std::vector<std::string> parts) {
  Scale scale;
  std::erase_if(parts, [&](const std::string& part) {
    const bool is_tiny = part == "--tiny";
    scale.tiny |= is_tiny;
    return is_tiny;
  });
  if (parts.empty()) parts = {"one", "ranks=2"};
  int failed = 0;
  for (const std::string& part : parts) {
    const absl::Status status = RunPart(part, scale);
    if (status.ok()) continue;
    std::fprintf(stderr, "gpu_benchmark: %s: %s\n", part.c_str(), status.ToString().c_str());
    ++failed;
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace dtensor::bench

int main(int argc, char** argv) {
  return dtensor::bench::Main(std::vector<std::string>(argv + 1, argv + argc));
}
