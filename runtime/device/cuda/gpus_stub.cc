#include "absl/status/status.h"
#include "dtensor/runtime/device/cuda/gpus.h"

namespace dtensor {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnavailableError(
      "this program was built without CUDA; build it with --config=cuda, or use the cpu device");
}

}  // namespace

// gpus.cc under --config=cuda.
absl::StatusOr<int> CountGpus() { return BuiltWithoutCuda(); }
absl::StatusOr<std::string> GpuName(int) { return BuiltWithoutCuda(); }
absl::Status AllowPeerReads(absl::Span<const int>) { return BuiltWithoutCuda(); }

}  // namespace dtensor
