#include "dtensor/runtime/comm/nccl/nccl_watch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/quiet_thread.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"

namespace dtensor {
namespace {

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kBusy(5), kIdle(100);  // between two checks
constexpr seconds kAbortEnds(2);
constexpr seconds kStreamEnds(1);  // for work that has begun, once it was aborted

}  // namespace

NcclWatch::NcclWatch(int rank, Device& device, Device& queue, WorldState& world)
    : rank_(rank),
      device_(device),
      queue_(queue),
      world_(world),
      thread_(QuietThread([this] { Run(); })) {}

NcclWatch::~NcclWatch() { Stop(); }

void NcclWatch::Add(NcclGroup& group) {
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(&group);
    if (!has_aborted_) return;
  }
  NcclGroup::AbortAll({&group}, Clock::now() + kAbortEnds);
}

void NcclWatch::Begin(const std::string& call, DeviceEvent ready) {
  const std::lock_guard lock(mutex_);
  flights_.push_back({call, std::move(ready), std::nullopt});
  last_call_ = call;
  changed_.notify_all();
}

void NcclWatch::Launched(DeviceEvent done) {
  const std::lock_guard lock(mutex_);
  flights_.back().done = std::move(done);
}

bool NcclWatch::HasLanded(const Flight& flight) { return flight.done && HasHappened(*flight.done); }

void NcclWatch::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::Run() {
  // Otherwise CUDA would use GPU 0 when this thread queries an event.
  if (const cudaError_t error = cudaSetDevice(device_.ordinal()); error != cudaSuccess) {
    device_.Fail(absl::InternalError(absl::StrCat("cudaSetDevice: ", cudaGetErrorString(error))));
  }
  Clock::time_point looked = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const milliseconds pause = flights_.empty() ? kIdle : kBusy;
    changed_.wait_for(lock, pause, [&] { return stop_ || (pause == kIdle && !flights_.empty()); });
    if (stop_) break;
    const Clock::time_point now = Clock::now();
    // If more time has passed, this process was stopped.
    const duration<double> since = std::min<duration<double>>(now - looked, 4 * kIdle);
    looked = now;
    lock.unlock();
    const bool goes_on = Look(since);
    lock.lock();
    if (!goes_on) return;
  }
  lock.unlock();
  if (world_.failed()) FailWith(world_.failure());  // that was why it was stopped
}

bool NcclWatch::Look(duration<double> since) {
  if (world_.failed()) {
    FailWith(world_.failure());
    return false;
  }
  if (absl::Status failure = FailureOfGroups(); !failure.ok()) {
    // If NCCL failed because a peer ended, the world's own failure says more about that peer.
    if (!absl::IsInvalidArgument(failure)) {
      const absl::Status known = AwaitFailure(world_);
      if (!known.ok()) failure = known;
    }
    FailWith(world_.failed() ? world_.failure() : world_.Fail(rank_, failure));
    return false;
  }
  std::string late;
  {
    const std::lock_guard lock(mutex_);
    flights_.remove_if(HasLanded);
    // Exchanges run one behind the other, so only the first one can be late.
    if (!flights_.empty() && HasHappened(flights_.front().ready)) {
      Flight& first = flights_.front();
      first.waited += since;
      if (first.waited.count() > world_.timeout_seconds()) late = first.call;
    }
  }
  if (late.empty()) return true;
  FailWith(
      world_.Fail(rank_, absl::DeadlineExceededError(absl::StrCat(
                             late, ": NCCL has not ended what all its ranks have launched within ",
                             world_.timeout_seconds(),
                             " s, the time-out; a GPU is busy with something else, "
                             "or the connection to it is down"))));
  return false;
}

absl::Status NcclWatch::FailureOfGroups() {
  const std::lock_guard lock(mutex_);
  for (const NcclGroup* const group : groups_) DT_RETURN_IF_ERROR(group->failure());
  return absl::OkStatus();
}

void NcclWatch::FailWith(const absl::Status& failure) {
  {
    std::string message(failure.message());
    const std::lock_guard lock(mutex_);
    if (!last_call_.empty()) {
      absl::StrAppend(&message, " (rank ", rank_, " met it behind ", last_call_, ")");
    }
    for (Device* const device : {&device_, &queue_}) {
      device->Fail(absl::Status(failure.code(), message));
    }
  }
  Abort();
  if (!AwaitEnds()) *gave_up_ = true;
}

void NcclWatch::Abort() {
  std::vector<NcclGroup*> groups;
  {
    const std::lock_guard lock(mutex_);
    groups = groups_;
    has_aborted_ = true;
  }
  NcclGroup::AbortAll(groups, Clock::now() + kAbortEnds);
}

bool NcclWatch::AwaitEnds() {
  std::optional<Clock::time_point> begun;  // when the first one began
  const Clock::time_point until =
      Clock::now() + duration_cast<Clock::duration>(duration<double>(world_.timeout_seconds()));
  for (;; std::this_thread::sleep_for(milliseconds(1))) {
    const std::lock_guard lock(mutex_);
    if (flights_.remove_if(HasLanded) > 0) begun.reset();
    if (flights_.empty()) return true;
    const Clock::time_point now = Clock::now();
    if (flights_.front().done && HasHappened(flights_.front().ready)) {
      if (!begun) begun = now;
      if (now - *begun > kStreamEnds) return false;
    } else if (stop_) {
      return true;
    } else if (now > until) {
      return false;
    }
  }
}

}  // namespace dtensor
