#include "dtensor/runtime/device/cuda/polled_wait.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/device/cuda/cuda_status.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;

// Most waits for small work are shorter than kAskAtOnce. Polling costs others bandwidth on the
// GPU's bus, and waking up costs others time on this core. So later pauses are a fraction of the
// time waited so far, which bounds how much longer a wait may take.
constexpr auto kAskAtOnce = std::chrono::microseconds(200);
constexpr Clock::duration kLeastPause = std::chrono::microseconds(20);
constexpr Clock::duration kMostPause = std::chrono::milliseconds(2);
constexpr int kPauseOfWait = 64;
constexpr std::chrono::duration<double> kAgain(0.1);  // patience of waits after one that gave up

}  // namespace

absl::Status PolledWait::For(const CudaPoint& point) {
  const auto start = Clock::now();
  std::optional<Clock::time_point> failed;  // when the failure was first seen
  const auto patience = gave_up_ ? std::min(patience_, kAgain) : patience_;
  while (true) {
    const cudaError_t error = cudaEventQuery(point.get());
    if (IsReady(error)) return ToStatus(error, "cudaEventQuery");
    if (gives_up_ && gives_up_()) {
      return absl::DeadlineExceededError(
          "a kernel on the GPU does not end, and could not be aborted; end this process");
    }
    const auto now = Clock::now();
    if (!failed && !device_.failure().ok()) failed = now;
    if (failed && now - *failed > patience) {
      gave_up_ = true;
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU did not end its work within ", patience_.count(),
                       " s after this: ", device_.failure().message()));
    }
    if (now - start < kAskAtOnce) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(
          std::clamp((now - start) / kPauseOfWait, kLeastPause, kMostPause));
    }
  }
}

}  // namespace dtensor
