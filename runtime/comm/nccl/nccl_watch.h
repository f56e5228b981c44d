// NcclWatch: looks after what a rank has launched, on a thread of its own, since neither the host
// that waits for a GPU nor NCCL hears of a peer that died.
//
// It fails the world where NCCL says that something is wrong, or where an exchange that all its
// ranks have launched does not end within the world's time-out. When the world has failed, by
// whomever, it fails the devices, so that nobody takes what has not come for values, and aborts all
// communicators, for their kernels would never end. Where what has begun does not end within some
// seconds then, the device is given up: waits for it end, and nothing is asked of the GPU any more.
// What is behind other work of the GPU has not begun, and is waited for.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_NCCL_WATCH_H_
#define DTENSOR_RUNTIME_COMM_NCCL_NCCL_WATCH_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/comm/nccl/nccl_group.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/device/device.h"

namespace dtensor {

class NcclWatch {
 public:
  // `device`, the rank's, `queue`, what exchanges are launched on, and `world` outlive it; of the
  // devices that is until Stop. Throws std::system_error where there is no thread to be had.
  NcclWatch(int rank, Device& device, Device& queue, WorldState& world);
  ~NcclWatch();  // Stop

  // `group` outlives it, or its Stop. Aborted at once where all others were.
  void Add(NcclGroup& group);
  // An exchange is about to be launched; its time begins with `ready`. `call` names it in errors:
  // op "..." of ranks [0, 1].
  void Begin(const std::string& call, DeviceEvent ready);
  // That is launched, or will not be; `done` is its end.
  void Launched(DeviceEvent done);
  // Aborts all communicators, once, unless they were, and those that are added later; for whoever
  // must not touch memory any more.
  void Abort();
  // Watches no more.
  void Stop();

  // Whether the device was given up. Any thread, also when the watch is gone.
  const std::shared_ptr<std::atomic<bool>>& gave_up() const { return gave_up_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    std::string call;
    DeviceEvent ready;
    std::optional<DeviceEvent> done;          // none while the host still launches it
    std::chrono::duration<double> waited{0};  // but for time in which this process was stopped
  };

  static bool HasLanded(const Flight& flight);

  void Run();
  bool Look(std::chrono::duration<double> since);  // false: the world has failed
  void FailWith(const absl::Status& failure);
  absl::Status FailureOfGroups();
  // Of what was launched, undone. False where it has begun and does not end, or does not begin, or
  // is not launched, within the time-out; true as well where it has not begun and nobody watches
  // any more.
  bool AwaitEnds();

  const int rank_;
  Device& device_;
  Device& queue_;
  WorldState& world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<NcclGroup*> groups_;
  std::list<Flight> flights_;
  std::string last_call_;
  bool stop_ = false, has_aborted_ = false;
  const std::shared_ptr<std::atomic<bool>> gave_up_ = std::make_shared<std::atomic<bool>>(false);
  std::thread thread_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_NCCL_WATCH_H_
