// ControlPlane: lets the processes of a world find each other, and learn that one of them failed,
// returned or died. It carries no tensors.
//
// Every rank keeps one connection, to rank 0, and a thread that looks after it. Rank 0 decides
// which failure was the first, and tells all ranks. If a connection closes, the process has died;
// if a process says nothing for the time-out (each sends several heartbeats in that time), it is
// lost. Time in which this process itself was stopped does not count, so a world that is suspended
// as a whole continues afterwards.
//
// The port is open until all ranks have joined, and only to ranks of this job (handshake.h).
#ifndef DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_PLANE_H_
#define DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_PLANE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/runtime/comm/process/control_messages.h"
#include "dtensor/runtime/comm/world_state.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/net/framed_link.h"
#include "dtensor/runtime/net/handshake.h"
#include "dtensor/runtime/net/socket.h"

namespace DTENSOR_EXPORT dtensor {

struct ControlPlaneOptions {
  int rank = 0, size = 1;
  HostPort address;  // where rank 0 listens
  std::string job, secret;
  // How long to wait for all ranks to join, and afterwards for a silent rank (there, rank 0's value
  // applies to all ranks).
  double timeout_seconds = 60;
  // Called once, with kDeadlineExceeded, on the thread that waits for the end, if this rank has
  // returned and is the lowest that has, and another rank has not returned a time-out later. Null:
  // not called.
  std::function<void(const absl::Status&)> report = nullptr;
};

// Thread-safe.
class ControlPlane final : public WorldState {
 public:
  // Waits until all ranks have joined. `listener`, if it is open, is the socket with which rank 0
  // already listens at the address. Errors: kDeadlineExceeded, naming the ranks that did not join,
  // or the address at which nobody answers; kUnavailable, naming a rank that joined and died before
  // the others had joined; kPermissionDenied if another job listens there; kFailedPrecondition for
  // two processes of one rank, or another number of ranks; kUnavailable if rank 0 cannot listen.
  static absl::StatusOr<std::unique_ptr<ControlPlane>> Join(const ControlPlaneOptions& options,
                                                            const std::string& card,
                                                            Socket listener = {});
  // Tells the others that this rank left, unless it has called Leave, and waits as AwaitEnd does.
  ~ControlPlane() override;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const std::vector<RankCard>& cards() const { return cards_; }

  absl::Status Fail(int rank, const absl::Status& reason) override;
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  absl::Status failure() const override;
  void TellOfFailure(std::function<void()> told) override;
  double timeout_seconds() const override { return timeout_.count(); }

  // This rank's function returned `status`; the rank takes part in nothing more.
  void Leave(const absl::Status& status);
  std::optional<absl::Status> returned(int rank) const override;

  // Waits until all ranks have left, or until the world has failed and the others have been told,
  // and as long as `work`, which is called repeatedly, returns true. If that takes longer than the
  // time-out, it is reported (ControlPlaneOptions::report).
  void AwaitEnd(absl::FunctionRef<bool()> work);
  void AwaitEnd() {
    AwaitEnd([] { return false; });
  }
  // Ends the thread and closes the connections; what is known stays known. Requires: AwaitEnd has
  // returned.
  void End();

 private:
  struct Peer {
    explicit Peer(FramedLink link_in) : link(std::move(link_in)) {}
    FramedLink link;
    NetClock::time_point heard = NetClock::now(), said = NetClock::now();
  };

  explicit ControlPlane(const ControlPlaneOptions& options);
  absl::Status Present(const std::string& card);
  // Rank 0's part of Join.
  absl::Status Gather(const std::string& card);
  absl::Status Admit();
  absl::Status CheckGuests();
  std::string MissingText() const;  // "ranks 1, 3 of 4"
  JobKey Key() const { return {options_.job, options_.secret, static_cast<uint32_t>(size())}; }
  void SetTimeout(double seconds);
  absl::Status Start();

  // On the thread.
  void Run();
  void Look(NetClock::time_point now);
  void Hear(int peer, NetClock::time_point now);
  absl::Status Handle(int peer, const Frame& frame);
  void Lose(int peer, const absl::Status& why);
  void Tell(NetClock::time_point now);

  // Requires: mutex_ is held.
  void Broadcast(uint8_t type, const std::string& body);
  void SetFailure(const absl::Status& failure);
  void SetLeft(int rank, const absl::Status& status);
  bool told_all() const;
  absl::Status StillWaits() const;
  void ReportWaits(std::unique_lock<std::mutex>& lock);  // unlocks it meanwhile
  void Wake();

  const ControlPlaneOptions options_;
  // Rank 0's, once all have joined.
  std::chrono::duration<double> timeout_;
  std::chrono::milliseconds interval_;  // of heartbeats
  Socket listener_;                     // until all ranks have joined
  std::vector<RankCard> cards_;

  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status failure_;
  std::function<void()> told_of_failure_;
  std::vector<std::optional<absl::Status>> returned_;
  int left_ = 0;
  bool over_ = false, stop_ = false;
  std::map<int, Peer> peers_;  // rank 0: all others; others: rank 0
  NetClock::time_point looked_ = NetClock::now();

  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_PROCESS_CONTROL_PLANE_H_
