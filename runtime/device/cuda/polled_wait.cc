#include "dtensor/runtime/device/cuda/polled_wait.h"

#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

// What most waits for small work take; asking is dear to others on the GPU's bus.
constexpr auto kAskAtOnce = std::chrono::microseconds(200);
constexpr auto kPause = std::chrono::microseconds(20);

}  // namespace

absl::Status PolledWait::For(const CudaPoint& point) const {
  const auto start = Clock::now();
  std::optional<Clock::time_point> failed;  // seen to be
  while (true) {
    const cudaError_t error = cudaEventQuery(point.get());
    if (error != cudaErrorNotReady) return ToStatus(error, "cudaEventQuery");
    cudaGetLastError();  // or who checks a launch next would find it
    if (gives_up_ && gives_up_()) {
      return absl::DeadlineExceededError(
          "a kernel on the GPU does not end, and could not be aborted; end this process");
    }
    const auto now = Clock::now();
    if (!failed && !device_.failure().ok()) failed = now;
    if (failed && now - *failed > patience_) {
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU did not end its work within ", patience_.count(),
                       " s after this: ", device_.failure().message()));
    }
    if (now - start < kAskAtOnce) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace dtensor
