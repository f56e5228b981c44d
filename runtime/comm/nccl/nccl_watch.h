// NcclWatch: watches, on a thread of its own, what a rank has launched, since neither the host that
// waits for a GPU nor NCCL learns that a peer has died.
//
// It fails the world if NCCL reports an error, or if an exchange that all its ranks have launched
// does not end within the world's time-out. When the world has failed, for whatever reason, it
// fails the devices, so that nobody takes missing data for values, and aborts all communicators,
// since their kernels would never end. If an exchange that has begun still does not end within some
// seconds after that, the device is given up: waits for it end, and the GPU is not used any more.
// An exchange behind other work of the GPU has not begun, and is waited for.
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
  // `device` is the rank's, and exchanges are launched on `queue`. Both must stay valid until Stop;
  // `world` outlives this object. Throws std::system_error if no thread can be created.
  NcclWatch(int rank, Device& device, Device& queue, WorldState& world);
  ~NcclWatch();  // Stop

  // `group` outlives this object, or its Stop. It is aborted immediately if the others were.
  void Add(NcclGroup& group);
  // An exchange is about to be launched; its time runs from `ready`. `call` names it in errors: op
  // "..." of ranks [0, 1].
  void Begin(const std::string& call, DeviceEvent ready);
  // The exchange was launched, or will not be; `done` is its end.
  void Launched(DeviceEvent done);
  // Aborts all communicators, also those that are added later, unless they were aborted before. For
  // a caller that must make sure that memory is not touched any more.
  void Abort();
  // Stops watching.
  void Stop();

  // Whether the device was given up. From any thread, also after this object is destroyed.
  const std::shared_ptr<std::atomic<bool>>& gave_up() const { return gave_up_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {
    std::string call;
    DeviceEvent ready;
    std::optional<DeviceEvent> done;          // none while the host still launches it
    std::chrono::duration<double> waited{0};  // without time in which this process was stopped
  };

  static bool HasLanded(const Flight& flight);

  void Run();
  bool Look(std::chrono::duration<double> since);  // false: the world has failed
  void FailWith(const absl::Status& failure);
  absl::Status FailureOfGroups();
  // Waits until all that was launched, and then aborted, has ended. Returns false if something has
  // begun and does not end, or if it does not begin or is not launched within the time-out. If
  // something has not begun and nobody watches any more, returns true as well.
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
